"""Moves of partitions: a plan is shown, asked of the controller, and followed to its end.   [IO]

    plan ── throttle? ── AlterPartitionReassignments ── until all have moved ── preferred leaders
                                                             └── the throttle is taken off

Owns   the throttle of a move: the settings of brokers and topics that it changes are put back,
       also when the command is interrupted. It says which could not be.
Never  waits for a move that another request has replaced: it says so.
Fails  with PlanError where no plan does what is asked; with ApiError for the first partition that
       the controller refuses.
Source KIP-455 (reassignments), KIP-73 (throttles), KIP-460 (elections).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kafkalite.cli.cluster_state import ClusterState
from kafkalite.cli.output import counted, emit, print_json, print_table, say, show_bytes, warn
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ErrorCode, KafkaliteError

if TYPE_CHECKING:
    from kafkalite.clients.admin.client import Admin, ConfigResource
    from kafkalite.clients.admin.plans import Placed

LOOK_SECONDS: Final = 0.5
LOOKS_MAX: Final = 6  # at a move that seems to have ended otherwise
PARTITIONS_AT_ONCE: Final = 1_000  # of one request
RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
SOURCES: Final = "leader.replication.throttled.replicas"
TARGETS: Final = "follower.replication.throttled.replicas"
FINE: Final = frozenset({ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED})


@dataclass(frozen=True, slots=True)
class Way:
    """How a plan is carried out."""

    dry_run: bool
    wait: bool
    json: bool
    throttle: int | None = None  # bytes a second, of each broker


@dataclass(frozen=True, slots=True)
class Plan:
    """The new replicas of each partition that changes, beside the state before.

    `elected` are partitions that get their preferred leader, whether they move or not.
    """

    state: ClusterState
    changes: Placed
    sizes: Mapping[TopicPartition, int]
    elected: tuple[TopicPartition, ...] = ()

    def copies(self) -> dict[TopicPartition, tuple[int, ...]]:
        """The brokers that copy each partition."""
        from kafkalite.clients.admin.plans import copies

        return copies(self.state.placed(), self.changes)

    def document(self, *, executed: bool) -> dict[str, Any]:
        """The plan for --json."""
        from kafkalite.clients.admin.plans import loads

        before = self.state.placed()
        after = {**before, **self.changes}
        old_replicas, old_leaders = loads(before)
        new_replicas, new_leaders = loads(after)
        copied = self.copies()
        return {
            "executed": executed,
            "replicas_to_copy": sum(map(len, copied.values())),
            "bytes_to_copy": sum(len(c) * self.sizes.get(tp, 0) for tp, c in copied.items()),
            "partitions": [
                {
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "from": before[tp],
                    "to": replicas,
                    "copied_by": copied[tp],
                    "bytes": self.sizes.get(tp),
                }
                for tp, replicas in self.changes.items()
            ],
            "brokers": [
                {
                    "id": broker,
                    "replicas": [old_replicas[broker], new_replicas[broker]],
                    "preferred_leaders": [old_leaders[broker], new_leaders[broker]],
                }
                for broker in sorted({*self.state.racks(), *old_replicas})
            ],
            "elections": [str(tp) for tp in self.elected],
        }


def show(plan: Plan) -> None:
    """The plan as tables, and what it costs."""
    told = plan.document(executed=False)
    if not (plan.changes or plan.elected):
        emit("nothing to move")
        return
    if plan.changes:
        print_table(
            ["partition", "from", "to", "copied by", "bytes"],
            [
                [str(tp), p["from"], p["to"], p["copied_by"], p["bytes"]]
                for tp, p in zip(plan.changes, told["partitions"], strict=True)
            ],
        )
        emit("")
        print_table(
            ["broker", "replicas", "then", "preferred leader of", "then"],
            [[b["id"], *b["replicas"], *b["preferred_leaders"]] for b in told["brokers"]],
        )
    emit(
        f"{counted(len(plan.changes), 'partition')}, "
        f"{counted(told['replicas_to_copy'], 'replica')} to copy "
        f"({show_bytes(told['bytes_to_copy'])}), "
        f"{counted(len(plan.elected), 'election')} of a preferred leader"
    )


async def carry_out(admin: Admin, plan: Plan, way: Way) -> None:
    """Shows the plan, and unless it is a dry run makes it so."""
    if not way.json:
        show(plan)
    if not way.dry_run:
        async with _throttled(admin, plan, way.throttle):
            await _ask(admin, plan.changes)
            copied = plan.copies()
            later = {tp for tp in plan.changes if copied[tp] and not way.wait}
            if way.wait:
                await _wait_until_moved(admin, plan.changes)
        await _elect(admin, [tp for tp in plan.elected if tp not in later])
        if later and not way.json:
            say(
                f"{counted(len(later), 'partition')} on the move: 'kafkalite cluster status' "
                "shows them"
            )
    if way.json:
        print_json(plan.document(executed=not way.dry_run))


async def cancel(admin: Admin, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Cancels the moves of those of these partitions that are moving, and returns them."""
    moving = sorted(await admin.list_partition_reassignments(list(partitions)))
    if moving:
        await admin.alter_partition_reassignments(dict.fromkeys(moving))
    return moving


async def _ask(admin: Admin, changes: Placed) -> None:
    every = list(changes.items())
    for first in range(0, len(every), PARTITIONS_AT_ONCE):
        await admin.alter_partition_reassignments(dict(every[first : first + PARTITIONS_AT_ONCE]))


async def _wait_until_moved(admin: Admin, changes: Placed) -> None:
    """Returns once every partition has its new replicas; progress goes to stderr.

    A broker that is asked may not have heard yet how a move ended: a move that ended otherwise is
    looked at LOOKS_MAX times.
    """
    left, told = set(changes), 0
    looks: Counter[TopicPartition] = Counter()
    while True:
        moving = await admin.list_partition_reassignments(left) if left else {}
        names = sorted({tp.topic for tp in left - moving.keys()})
        found = {
            TopicPartition(topic.name, info.partition): info.replicas
            for topic in (await admin.describe_topics(names) if names else ())
            for info in topic.partitions
        }
        for tp in sorted(left - moving.keys()):
            if set(found.get(tp, ())) != set(changes[tp]):
                looks[tp] += 1
                if looks[tp] < LOOKS_MAX:
                    continue
                words = f"it has replicas {_listed(found.get(tp, ()))}, not {_listed(changes[tp])}"
                raise KafkaliteError(f"{tp}: the move was cancelled or replaced, {words}")
            left.discard(tp)
        if len(changes) - len(left) > told:
            told = len(changes) - len(left)
            say(f"{told:,} of {counted(len(changes), 'partition')} moved")
        if not left:
            return
        await asyncio.sleep(LOOK_SECONDS)


async def _elect(admin: Admin, partitions: list[TopicPartition]) -> None:
    if not partitions:
        return
    for tp, (code, words) in (await admin.elect_leaders(partitions)).items():
        if code not in FINE:
            say(f"{tp} keeps its leader: {words or code.name} ({code.name})")


def _listed(replicas: Iterable[int]) -> str:
    return ",".join(map(str, replicas)) or "none"


# ---- throttles -----------------------------------------------------------------------------------


@asynccontextmanager
async def _throttled(admin: Admin, plan: Plan, rate: int | None) -> AsyncIterator[None]:
    """While it lasts no broker sends or takes more than `rate` bytes a second for the plan."""
    if rate is None:
        yield
        return
    wanted = _throttles(plan, rate)
    before = await _settings_now(admin, wanted)
    try:
        for resource, settings in wanted.items():
            await admin.alter_configs(resource, settings)
        yield
    except BaseException:
        for words in await _put_back(admin, before):
            warn(words)
        raise
    if left := await _put_back(admin, before):
        raise KafkaliteError("; ".join(left))


async def _put_back(
    admin: Admin, before: Mapping[ConfigResource, Mapping[str, str | None]]
) -> list[str]:
    """Gives all settings their former values; an error text for each resource that refuses, as a
    broker does that is down."""
    left = []
    for resource, former in before.items():
        try:
            await admin.alter_configs(resource, former)
        except KafkaliteError as error:
            left.append(f"the throttle of {resource} is still set ({', '.join(former)}): {error}")
    return left


def _throttles(plan: Plan, rate: int) -> dict[ConfigResource, dict[str, str]]:
    """The settings of the brokers and topics that a plan concerns."""
    from kafkalite.clients.admin.client import ConfigResource, ResourceType

    placed, copied = plan.state.placed(), plan.copies()
    busy = {tp: added for tp, added in copied.items() if added}
    brokers = {broker for tp, added in busy.items() for broker in (*placed[tp], *added)}
    wanted = {
        ConfigResource(ResourceType.BROKER, str(broker)): dict.fromkeys(RATES, str(rate))
        for broker in sorted(brokers & plan.state.racks().keys())
    }
    entries: dict[str, dict[str, list[str]]] = {}
    for tp, added in busy.items():
        of_topic = entries.setdefault(tp.topic, {SOURCES: [], TARGETS: []})
        of_topic[SOURCES] += [f"{tp.partition}:{broker}" for broker in placed[tp]]
        of_topic[TARGETS] += [f"{tp.partition}:{broker}" for broker in added]
    for topic, lists in entries.items():
        resource = ConfigResource(ResourceType.TOPIC, topic)
        wanted[resource] = {name: ",".join(each) for name, each in lists.items()}
    return wanted


async def _settings_now(
    admin: Admin, wanted: Mapping[ConfigResource, Mapping[str, str]]
) -> dict[ConfigResource, dict[str, str | None]]:
    """What the settings are to be afterwards: None where they were not set."""
    from kafkalite.clients.admin.client import ConfigSource, ResourceType

    own = {
        ResourceType.TOPIC: ConfigSource.TOPIC,
        ResourceType.BROKER: ConfigSource.DYNAMIC_BROKER,
    }
    before: dict[ConfigResource, dict[str, str | None]] = {}
    for resource, settings in wanted.items():
        found = (await admin.describe_configs([resource], settings)).get(resource, {})
        before[resource] = {
            name: found[name].value
            if name in found and found[name].source is own[resource.resource_type]
            else None
            for name in settings
        }
    return before
