"""How an application that runs is getting on, as seen from outside.                        [IO]

The group's coordinator knows the workers and their tasks, the log how far they have come. Workers
that answer over HTTP say what they do at the moment.

Owns   nothing.
Fails  with the errors of the broker. A worker that does not answer is listed as such.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from kafkalite.clients.admin.client import Admin
from kafkalite.clients.cluster import Client
from kafkalite.core.types import TopicPartition
from kafkalite.errors import BrokerUnavailable
from kafkalite.streams.local.assignor import TaskId, tasks_of
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.peers import Peer, Peers
from kafkalite.streams.local.topics import external_topics
from kafkalite.streams.plan import Plan
from kafkalite.streams.web.client import get

ANSWER_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """One task: its owner, and the records of its inputs that are not committed yet."""

    task: TaskId
    worker: str | None  # its address, else its host; None: nobody has it
    lag: int
    stores: tuple[str, ...]
    records: int | None = None  # processed by this worker; None where it does not say
    records_per_second: float | None = None  # at the moment


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker; `topology` is its answer over HTTP, None without one."""

    name: str
    tasks: int
    state: str  # ready, starting, no HTTP, no answer
    reasons: tuple[str, ...] = ()
    topology: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Status:
    """An application at one moment."""

    application_id: str
    workers: tuple[WorkerStatus, ...]
    tasks: tuple[TaskStatus, ...]

    @property
    def lag(self) -> int:
        """The records that no worker has committed yet."""
        return sum(task.lag for task in self.tasks)

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "application_id": self.application_id,
            "lag": self.lag,
            "workers": [
                {
                    "worker": worker.name,
                    "tasks": worker.tasks,
                    "state": worker.state,
                    "reasons": list(worker.reasons),
                    "records": _of(worker, "records"),
                    "records_per_second": _of(worker, "records_per_second"),
                }
                for worker in self.workers
            ],
            "tasks": [
                {
                    "task": str(task.task),
                    "worker": task.worker,
                    "lag": task.lag,
                    "stores": list(task.stores),
                    "records": task.records,
                    "records_per_second": task.records_per_second,
                }
                for task in self.tasks
            ],
        }


def _of(worker: WorkerStatus, name: str) -> Any:
    return None if worker.topology is None else worker.topology["worker"][name]


async def look(client: Client, plan: Plan) -> Status:
    """The application of `plan` as it is now."""
    subs = {sub.id: sub for sub in compile_topology(plan)}
    async with Admin(client) as admin:
        topics = await admin.describe_topics()
        partitions_of = {topic.name: topic.partition_count for topic in topics}
        external = external_topics(list(subs.values()), topics)
        sources = {
            sub.id: (*external[sub.id], *(topic.name for topic in sub.repartition_sources))
            for sub in subs.values()
        }
        tasks = tasks_of(sources, partitions_of)
        reader = {tp: task for task, partitions in tasks.items() for tp in partitions}
        peers = await Peers(plan.application_id, client, reader.get).all()
        lags = await _lags(admin, plan.application_id, list(reader))
    workers = await asyncio.gather(*map(_worker, peers))
    owners = {task: _name(peer) for peer in peers for task in peer.tasks}
    told = {
        each["task"]: (each["records"], each["records_per_second"])
        for worker in workers
        if worker.topology is not None
        for each in worker.topology["tasks"]
    }
    return Status(
        plan.application_id,
        tuple(workers),
        tuple(
            TaskStatus(
                task,
                owners.get(task),
                sum(lags[tp] for tp in partitions),
                tuple(store.name for store in subs[task.sub_topology].stores),
                *told.get(str(task), (None, None)),
            )
            for task, partitions in sorted(tasks.items())
        ),
    )


async def _lags(
    admin: Admin, application_id: str, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """The records behind what the group has committed, by input."""
    committed = await admin.list_group_offsets(application_id)
    starts = await admin.beginning_offsets(partitions)
    ends = await admin.end_offsets(partitions, isolation_level="read_committed")
    reached = {
        tp: max(start, committed[tp].offset) if tp in committed else start
        for tp, start in starts.items()
    }
    return {tp: max(0, end - reached[tp]) for tp, end in ends.items()}


def _name(peer: Peer) -> str:
    return peer.address or f"{peer.member_id[:40]} at {peer.host}"


async def _worker(peer: Peer) -> WorkerStatus:
    name, count = _name(peer), len(peer.tasks)
    if peer.address is None:
        return WorkerStatus(name, count, "no HTTP")
    try:
        _, _, health = await get(peer.address, "/health", ANSWER_SECONDS)
        status, _, topology = await get(peer.address, "/topology", ANSWER_SECONDS)
    except BrokerUnavailable as error:
        return WorkerStatus(name, count, "no answer", (str(error),))
    found = orjson.loads(health)
    plan = orjson.loads(topology) if status == 200 else None
    return WorkerStatus(name, count, found["status"], tuple(found["reasons"]), plan)
