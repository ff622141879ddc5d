"""`kafkalite server status`: the state of a cluster, and its partitions without a leader.    [IO]

Fails  with exit code 1 if no broker answers, and if a partition has no leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kafkalite.cli.cluster_state import log_dirs
from kafkalite.cli.options import BOOTSTRAP, AsJson, Bootstrap, examples
from kafkalite.cli.output import ask, counted, emit, print_json, print_table, show_bytes
from kafkalite.errors import ErrorCode

if TYPE_CHECKING:
    from kafkalite.clients.admin.client import Admin
    from kafkalite.clients.metadata import TopicInfo

EPILOG = examples(
    "kafkalite server status",
    "kafkalite server status --apis",
    "kafkalite server status --json | jq .offline_partitions",
)


def status(
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    apis: Annotated[
        bool, typer.Option("--apis", help="Also the APIs of the broker, with their versions.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Show brokers, and partitions that are in trouble.

    Those are offline or under-replicated. Exit code 0 means that every partition has a leader.
    """
    told = ask(bootstrap_servers, _status)
    if json:
        print_json(told)
    else:
        _print(told, apis)
    if told["offline_partitions"]:
        raise typer.Exit(1)


async def _status(admin: Admin) -> dict[str, Any]:
    cluster = await admin.describe_cluster()
    topics = await admin.describe_topics()
    directories = await _directories(admin)
    return {
        "cluster_id": cluster.cluster_id,
        "controller": cluster.controller_id,
        "brokers": [
            {
                "id": node.node_id,
                "host": node.host,
                "port": node.port,
                "rack": cluster.racks.get(node.node_id),
                "log_dirs": directories.get(node.node_id, []),
            }
            for node in cluster.nodes
        ],
        "topics": sum(not topic.is_internal for topic in topics),
        "internal_topics": sum(topic.is_internal for topic in topics),
        "partitions": sum(topic.partition_count for topic in topics),
        "offline_partitions": offline(topics),
        "under_replicated_partitions": under_replicated(topics),
        "apis": await _apis(admin),
    }


def offline(topics: list[TopicInfo]) -> list[str]:
    """The partitions without a leader."""
    return [f"{t.name}-{p.partition}" for t in topics for p in t.partitions if p.leader_id < 0]


def under_replicated(topics: list[TopicInfo]) -> list[str]:
    """The partitions that lack a replica in sync."""
    return [
        f"{t.name}-{p.partition}"
        for t in topics
        for p in t.partitions
        if len(p.in_sync_replicas) < len(p.replicas)
    ]


async def _directories(admin: Admin) -> dict[int, list[dict[str, Any]]]:
    """Each broker's log directories; empty if the brokers cannot say."""
    found = await log_dirs(admin)
    return {
        node_id: [
            {
                "path": directory.path,
                "error": None
                if directory.error_code is ErrorCode.NONE
                else directory.error_code.name,
                "bytes": sum(replica.size_bytes for replica in directory.replicas.values()),
                "total_bytes": directory.total_bytes,
                "usable_bytes": directory.usable_bytes,
            }
            for directory in directories
        ]
        for node_id, directories in found.items()
    }


async def _apis(admin: Admin) -> list[dict[str, Any]]:
    from kafkalite.core.protocol.apis import API, ApiKey

    versions = await admin.api_versions()
    known = {key.value: API[key].name for key in ApiKey}
    return [
        {"key": key, "name": known.get(key), "min_version": low, "max_version": high}
        for key, (low, high) in sorted(versions.items())
    ]


def _print(told: dict[str, Any], apis: bool) -> None:
    emit(f"cluster {told['cluster_id']}, controller {told['controller']}, {len(told['apis'])} APIs")
    unled, lagging = told["offline_partitions"], told["under_replicated_partitions"]
    emit(
        f"{counted(told['topics'], 'topic')} and {told['internal_topics']} internal, "
        f"{counted(told['partitions'], 'partition')}, "
        f"{len(unled)} offline, {len(lagging)} under-replicated"
    )
    rows = []
    for broker in told["brokers"]:
        directories = broker["log_dirs"]
        path = ",".join(d["path"] for d in directories) or None
        used = show_bytes(sum(d["bytes"] for d in directories)) if directories else None
        free = [d["usable_bytes"] for d in directories if d["usable_bytes"] >= 0]
        rows.append(
            [broker["id"], f"{broker['host']}:{broker['port']}", broker["rack"], path, used,
             show_bytes(sum(free)) if free else None]
        )  # fmt: skip
    print_table(["broker", "address", "rack", "data", "used", "free"], rows)
    for what, named in (("offline", unled), ("under-replicated", lagging)):
        for partition in named:
            emit(f"{what}: {partition}")
    if apis:
        columns = ["key", "name", "min_version", "max_version"]
        print_table(columns, [[api[c] for c in columns] for api in told["apis"]])
