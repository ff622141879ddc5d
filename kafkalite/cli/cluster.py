"""`kafkalite cluster`: run a cluster, see its state, move partitions between its brokers.   [IO]

`start` runs brokers of our own; the other commands speak Kafka's protocol alone, so they work on a
cluster of Apache Kafka too.

Fails  with exit code 1 and one line: a plan that cannot be made, a move that was refused. `status`
       ends with 1 if a partition has no leader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kafkalite.cli import cluster_start, completing
from kafkalite.cli.options import (
    BOOTSTRAP,
    AsJson,
    Bootstrap,
    examples,
    no_such_partition,
    parse_size,
    parse_topic_partitions,
    program,
)
from kafkalite.cli.output import ask, counted, emit, print_json, print_table

if TYPE_CHECKING:
    from kafkalite.cli.cluster_moves import Way
    from kafkalite.cli.cluster_state import ClusterState
    from kafkalite.clients.admin.client import Admin
    from kafkalite.clients.admin.plans import Placed
    from kafkalite.core.types import TopicPartition

BROKERS_MAX: Final = 1_000  # that a flag may name

cli = program("Run a cluster; see its state, and move partitions between its brokers.")
cli.command(epilog=cluster_start.EPILOG)(cluster_start.start)

Planned = Annotated[bool, typer.Option("--dry-run", help="Show the plan, and change nothing.")]
Wait = Annotated[
    bool, typer.Option("--wait", help="Return when all is done; progress goes to stderr.")
]
Throttle = Annotated[
    str | None,
    typer.Option(
        help="Bytes a second that each broker sends and takes for the moves: 10M. Needs --wait."
    ),
]


@cli.command(
    epilog=examples(
        "kafkalite cluster status",
        "kafkalite cluster status --wait",
        "kafkalite cluster status --json | jq .under_replicated",
    )
)
def status(
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="First wait until all replicas are in sync and none moves."),
    ] = False,
    json: AsJson = False,
) -> None:
    """Show brokers, replicas, moves, and partitions in trouble.

    Exit code 0 means that every partition has a leader.
    """
    from kafkalite.cli.cluster_state import read_settled, read_state

    report = _document(ask(bootstrap_servers, read_settled if wait else read_state))
    if json:
        print_json(report)
    else:
        _print(report)
    if report["offline"]:
        raise typer.Exit(1)


def _document(state: ClusterState) -> dict[str, Any]:
    from kafkalite.cli.cluster_state import BELOW_MIN_ISR, OFFLINE, UNDER_REPLICATED

    troubles = state.troubles()

    def number(kind: str) -> int:
        return sum(kind in trouble.kinds for trouble in troubles)

    return {
        "cluster_id": state.cluster.cluster_id,
        "controller": state.cluster.controller_id,
        "brokers": [
            {
                "id": load.node_id,
                "address": load.address,
                "rack": load.rack,
                "is_up": load.address is not None,
                "leaders": load.leaders,
                "preferred_leaders": load.preferred_leaders,
                "replicas": load.replicas,
                "out_of_sync": load.out_of_sync,
            }
            for load in state.loads()
        ],
        "topics": sum(not topic.is_internal for topic in state.topics),
        "internal_topics": sum(topic.is_internal for topic in state.topics),
        "partitions": sum(topic.partition_count for topic in state.topics),
        "offline": number(OFFLINE),
        "under_replicated": number(UNDER_REPLICATED),
        "below_min_isr": number(BELOW_MIN_ISR),
        "troubles": [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "troubles": each.kinds,
                "leader": each.info.leader_id,
                "replicas": each.info.replicas,
                "isr": each.info.in_sync_replicas,
                "min_isr": each.min_isr,
            }
            for each in troubles
        ],
        "moves": [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "replicas": move.replicas,
                "adding": move.adding,
                "removing": move.removing,
            }
            for tp, move in sorted(state.moving.items())
        ],
    }


def _print(report: dict[str, Any]) -> None:
    up = sum(broker["is_up"] for broker in report["brokers"])
    emit(
        f"cluster {report['cluster_id']}, controller {report['controller']}, "
        f"{counted(up, 'broker')} up of {len(report['brokers'])}"
    )
    emit(
        f"{counted(report['topics'], 'topic')} and {report['internal_topics']} internal, "
        f"{counted(report['partitions'], 'partition')}, {report['offline']} offline, "
        f"{report['under_replicated']} under-replicated, {report['below_min_isr']} below min ISR, "
        f"{len(report['moves'])} moving"
    )
    columns = ["address", "rack", "leaders", "preferred_leaders", "replicas", "out_of_sync"]
    print_table(
        ["broker", "address", "rack", "leads", "preferred leader of", "replicas", "out of sync"],
        [[b["id"], *(b[c] for c in columns)] for b in report["brokers"]],
    )
    if report["troubles"]:
        emit("")
        columns = ["troubles", "leader", "replicas", "isr", "min_isr"]
        print_table(
            ["partition", *columns],
            [
                [f"{p['topic']}-{p['partition']}", *(p[c] for c in columns)]
                for p in report["troubles"]
            ],
        )
    if report["moves"]:
        emit("")
        columns = ["replicas", "adding", "removing"]
        print_table(
            ["moving", *columns],
            [[f"{p['topic']}-{p['partition']}", *(p[c] for c in columns)] for p in report["moves"]],
        )


@cli.command(
    epilog=examples(
        "kafkalite cluster move orders --to 1,2,3 --dry-run",
        "kafkalite cluster move orders:0-5 clicks --to 4,5,6 --throttle 20M --wait",
        "kafkalite cluster move orders --to 1,2,3 --replication-factor 3 --wait",
        "kafkalite cluster move orders --cancel",
    )
)
def move(
    topics: Annotated[
        list[str],
        typer.Argument(
            help="Topics, or partitions of one: orders:0,2 or orders:0-5.",
            metavar="TOPIC[:PARTITIONS]",
            autocompletion=completing.topics,
        ),
    ],
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    to: Annotated[
        str | None,
        typer.Option(help="The brokers that are to hold the partitions: 1,2,3; the others let go."),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(min=1, help="Brokers that hold each partition.", show_default="as it is"),
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Undo the moves of these partitions under way.")
    ] = False,
    dry_run: Planned = False,
    throttle: Throttle = None,
    wait: Wait = False,
    json: AsJson = False,
) -> None:
    """Move partitions to other brokers, or add replicas.

    With as many brokers as replicas, each of them is preferred leader in turn, in the order given.
    With more, replicas stay where they may, and the others are spread evenly.
    """
    chosen = parse_topic_partitions(topics, "TOPIC")
    if cancel:
        _cancel(bootstrap_servers, chosen, json)
        return
    if to is None:
        raise typer.BadParameter("name the brokers, such as --to 1,2,3", param_hint="--to")
    brokers, way = _parse_brokers(to), _way(dry_run, wait, json, throttle)

    def planned(state: ClusterState) -> Placed:
        from kafkalite.clients.admin import plans

        wanted = _partitions(state, chosen)
        return plans.move(state.placed(), wanted, brokers, state.racks(), replication_factor)

    _carry_out(bootstrap_servers, planned, way, topics=list(chosen))


@cli.command(
    epilog=examples(
        "kafkalite cluster rebalance --dry-run", "kafkalite cluster rebalance --throttle 20M --wait"
    )
)
def rebalance(
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    dry_run: Planned = False,
    throttle: Throttle = None,
    wait: Wait = False,
    json: AsJson = False,
) -> None:
    """Spread replicas and leaders evenly over brokers and racks.

    Few replicas are copied. Then preferred leaders are elected.
    """
    way = _way(dry_run, wait, json, throttle)

    def planned(state: ClusterState) -> Placed:
        from kafkalite.clients.admin import plans

        if state.moving:
            tp = min(state.moving)
            raise plans.PlanError(f"{tp} is moving, wait for it or cancel the move")
        return plans.rebalance(state.placed(), state.racks())

    _carry_out(bootstrap_servers, planned, way, elects_all=True)


@cli.command(
    epilog=examples("kafkalite cluster drain 2 --dry-run", "kafkalite cluster drain 2 --wait")
)
def drain(
    brokers: Annotated[
        list[int], typer.Argument(help="Ids of the brokers.", metavar="BROKER", min=0)
    ],
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    dry_run: Planned = False,
    throttle: Throttle = None,
    wait: Wait = False,
    json: AsJson = False,
) -> None:
    """Move all replicas off brokers that are to leave.

    A broker may be down already. Nothing else moves.
    """
    way = _way(dry_run, wait, json, throttle)

    def planned(state: ClusterState) -> Placed:
        from kafkalite.clients.admin import plans

        known = {load.node_id for load in state.loads()}
        if unknown := [broker for broker in brokers if broker not in known]:
            there = ", ".join(map(str, sorted(known)))
            raise plans.PlanError(f"there is no broker {unknown[0]}: the cluster has {there}")
        return plans.drain(state.placed(), state.racks(), brokers)

    _carry_out(bootstrap_servers, planned, way)


def _way(dry_run: bool, wait: bool, json: bool, throttle: str | None) -> Way:
    from kafkalite.cli.cluster_moves import Way

    if throttle is None:
        return Way(dry_run, wait, json)
    if not (wait or dry_run):
        words = "needs --wait, which takes the throttle off at the end"
        raise typer.BadParameter(words, param_hint="--throttle")
    rate = parse_size(throttle, "--throttle")
    if rate < 1:
        raise typer.BadParameter("0 bytes a second never end", param_hint="--throttle")
    return Way(dry_run, wait, json, rate)


def _carry_out(
    bootstrap_servers: str,
    planned: Callable[[ClusterState], Placed],
    way: Way,
    *,
    topics: list[str] | None = None,
    elects_all: bool = False,
) -> None:
    """Reads the state, plans, and makes it so."""

    async def work(admin: Admin) -> None:
        from kafkalite.cli.cluster_moves import Plan, carry_out
        from kafkalite.cli.cluster_state import read_state, sizes_of

        state = await read_state(admin)
        changes = planned(state)
        leads = {tp: info.leader_id for tp, info in state.partitions()}
        preferred = {tp: replicas[0] for tp, replicas in {**state.placed(), **changes}.items()}
        elected = tuple(
            tp
            for tp, leader in preferred.items()
            if leads[tp] != leader and (elects_all or tp in changes)
        )
        sizes = await sizes_of(admin) if changes else {}
        plan = Plan(state, changes, sizes, elected)
        await carry_out(admin, plan, way)

    ask(bootstrap_servers, work, topics=topics or ())


def _cancel(bootstrap_servers: str, chosen: dict[str, list[int] | None], json: bool) -> None:
    async def work(admin: Admin) -> list[TopicPartition]:
        from kafkalite.cli import cluster_moves
        from kafkalite.cli.cluster_state import read_state

        return await cluster_moves.cancel(admin, _partitions(await read_state(admin), chosen))

    cancelled = ask(bootstrap_servers, work, topics=list(chosen))
    if json:
        print_json({"cancelled": [str(tp) for tp in cancelled]})
    else:
        emit(f"{counted(len(cancelled), 'move')} cancelled")


def _partitions(state: ClusterState, chosen: dict[str, list[int] | None]) -> list[TopicPartition]:
    """The partitions that arguments name; ApiError for a topic that is not there."""
    from kafkalite.core.types import TopicPartition
    from kafkalite.errors import ApiError, ErrorCode

    counts = {topic.name: topic.partition_count for topic in state.topics}
    found = []
    for topic, numbers in chosen.items():
        if topic not in counts:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic)
        for number in range(counts[topic]) if numbers is None else numbers:
            if number >= counts[topic]:
                words = no_such_partition(topic, counts[topic], number)
                raise typer.BadParameter(words, param_hint="TOPIC")
            found.append(TopicPartition(topic, number))
    return found


def _parse_brokers(text: str) -> list[int]:
    brokers = []
    for part in text.split(","):
        if not (part.strip().isascii() and part.strip().isdigit()):
            raise typer.BadParameter(f"'{text}' is not a list like 1,2,3", param_hint="--to")
        brokers.append(int(part))
    if len(set(brokers)) < len(brokers) or len(brokers) > BROKERS_MAX:
        raise typer.BadParameter(f"'{text}' names a broker twice", param_hint="--to")
    return brokers
