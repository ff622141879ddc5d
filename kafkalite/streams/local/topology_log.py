"""The topology log: which topology an application's state belongs to.                     [IO]

An application with state has one more internal topic, `<application.id>-topology`: one partition,
kept for ever. Each record claims the application for a topology, and names the offset of the
claim that it replaces. The claim in force is a fold: a record counts if it replaces the claim in
force when its turn comes, so of two workers that claim at once the log decides, and both read the
same. Nobody needs to be a member of the group for it.

    offset 0   replaces None   fingerprint A      in force
    offset 1   replaces 0      fingerprint B      in force
    offset 2   replaces 0      fingerprint C      lost: its worker compares again, with B

A claim without a fingerprint says that a reset has begun; until it is done nobody starts. A claim
also names the engine that has the state (holder.py), so that no two engines run on one state.

Owns   the claims; `check` reads and compares, `claim` writes.
Fails  with TopologyError when the state does not survive the change, when members run that the
       new topology would not get along with, when records of a repartition topic would be
       stranded, when a store that is new has an old changelog, and when another engine has the
       state.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import TopologyError
from kafkalite.streams.fingerprint import Difference, Fingerprint, compare, fingerprint
from kafkalite.streams.local.compile import SubTopology
from kafkalite.streams.local.holder import Holder, elsewhere
from kafkalite.streams.naming import internal_name
from kafkalite.streams.plan import Plan
from kafkalite.streams.rewrites import topology_topic

SUFFIX: Final = "-topology"
SUFFIXES: Final = ("-changelog", "-repartition", SUFFIX)
CONFIG: Final = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
POLL_MS: Final = 1_000
IDLE_POLLS_MAX: Final = 30
ATTEMPTS_MAX: Final = 10  # claims that others were faster with
AT_REST: Final = ("Empty", "Dead")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim in force: where it stands in the log, the topology that it is for, and the engine
    that has the state.

    Without a topology a reset has begun; without a holder the local engine has the state.
    """

    offset: int
    fingerprint: Fingerprint | None
    holder: Holder | None = None


def fold(records: Iterable[tuple[int, bytes | None]]) -> Claim | None:
    """The claim in force after these records, each an offset and a value."""
    in_force: Claim | None = None
    for offset, value in records:
        try:
            found: dict[str, Any] = json.loads(value or b"")
            told = found["fingerprint"]
            topology = told and Fingerprint.decode(json.dumps(told))
            claim = Claim(offset, topology, Holder.decode(found.get("holder")))
            replaces = found["replaces"]
        except (ValueError, KeyError, TypeError) as error:
            raise TopologyError(
                f"offset {offset} of the topology log cannot be read ({error}): was it written by "
                "a newer version, or by hand?"
            ) from None
        if replaces == (None if in_force is None else in_force.offset):
            in_force = claim
    return in_force


class TopologyLog:
    """The log of one application, on behalf of one worker, or of another engine: `holder`."""

    def __init__(
        self,
        client: Client,
        admin: Admin,
        plan: Plan,
        subs: Sequence[SubTopology],
        holder: Holder | None = None,
    ) -> None:
        self._holder = holder
        self._client = client
        self._admin = admin
        self._app = plan.application_id
        self._mine = fingerprint(plan, subs)
        self._changelog_of = {store.name: store.changelog_topic for s in subs for store in s.stores}
        self._owned = {topic.name for sub in subs for topic in sub.internal_topics}
        self._topic = topology_topic(plan.application_id)
        self._plan = plan

    async def check(self) -> None:
        """Compares this topology with the one in force, and names topics that nobody owns."""
        existing = [topic.name for topic in await self._admin.describe_topics()]
        if self._topic in existing:
            in_force = await self._read()
            if in_force is not None and (before := self._usable(in_force)) != self._mine:
                await self._compare(before, existing)
        owned = {*self._owned, self._topic}
        if ownerless := [t for t in internal_topics(self._app, existing) if t not in owned]:
            log.warning(
                "%s: no operator owns the internal topics %s: an earlier topology did. "
                "`kafkalite topics delete` deletes them",
                self._app,
                ", ".join(ownerless),
            )

    async def claim(self) -> None:
        """Writes down that the application runs this topology, unless the log says so already."""
        # Without state and internal topics any topology of the local engine may follow.
        if not self._owned and self._holder is None:
            existing = [topic.name for topic in await self._admin.describe_topics()]
            if self._topic not in existing:
                return
        await self._create()
        for _ in range(ATTEMPTS_MAX):
            in_force = await self._read()
            if in_force is not None:
                if (before := self._usable(in_force)) == self._mine:
                    return
                # Another worker was faster, or this is a change.
                refuse(self._app, compare(before, self._mine))
            await self._write(in_force, self._mine, self._holder)
        raise TopologyError(f"{self._app}: other topologies claim this application all the time")

    async def in_force(self) -> Claim | None:
        """The claim in force. TopologyError while a reset is not finished."""
        if self._topic not in await self._admin.list_topics():
            return None
        in_force = await self._read()
        if in_force is not None:
            self._not_reset(in_force)
        return in_force

    async def hand_over(self, holder: Holder | None) -> None:
        """Writes down that another engine has the state now, which was this one's until now."""
        await self._create()
        for _ in range(ATTEMPTS_MAX):
            in_force = await self._read()
            if in_force is not None and in_force.holder == holder:
                self._holder = holder
                return
            before = self._mine if in_force is None else self._usable(in_force)
            await self._write(in_force, before, holder)
        raise TopologyError(f"{self._app}: other topologies claim this application all the time")

    async def mark_reset(self) -> None:
        """Notes that a reset has begun."""
        await self._write(await self._read(), None, None)

    def _usable(self, in_force: Claim) -> Fingerprint:
        """The topology of the claim. TopologyError if a reset has begun, or another engine has the
        state."""
        topology = self._not_reset(in_force)
        if words := elsewhere(self._app, in_force.holder, self._holder):
            raise TopologyError(words)
        return topology

    def _not_reset(self, in_force: Claim) -> Fingerprint:
        if in_force.fingerprint is None:
            raise TopologyError(
                f"{self._app}: a reset was begun and not finished: run `kafkalite-streams reset` "
                "with --execute again"
            )
        return in_force.fingerprint

    async def _compare(self, before: Fingerprint, existing: Sequence[str]) -> None:
        difference = compare(before, self._mine)
        refuse(self._app, difference)
        await self._refuse_beside_others(before, difference)
        await self._refuse_stranding(difference, existing)
        await self._refuse_old_changelogs(difference, existing)
        for note in difference.notes:
            log.warning("%s: the topology has changed: %s", self._app, note)

    async def _refuse_beside_others(self, before: Fingerprint, difference: Difference) -> None:
        """Members cannot share work if they read different topics, or rows of different tables."""
        if before.reads == self._mine.reads and not difference.refolded:
            return
        (group,) = await self._admin.describe_groups([self._app])
        if group.state not in AT_REST and before.reads == self._mine.reads:
            raise TopologyError(
                f"{self._app}: {len(group.members)} workers run a topology that folds records "
                f"before {', '.join(map(repr, difference.refolded))} in another way: stop them "
                "first"
            )
        if group.state not in AT_REST:
            raise TopologyError(
                f"{self._app}: {len(group.members)} workers run a topology that reads other "
                f"topics ({', '.join(before.reads)}; this one: {', '.join(self._mine.reads)}): "
                "stop them first"
            )

    async def _refuse_stranding(self, difference: Difference, existing: Sequence[str]) -> None:
        """Records on their way through a topic that nobody reads any more would be lost."""
        unread_by_us = (*difference.gone_repartitions, *difference.unreadable)
        names = [
            internal_name(self._plan.application_id, name, "repartition") for name in unread_by_us
        ]
        partitions = await self._partitions(name for name in names if name in existing)
        if not partitions:
            return
        ends = await self._admin.end_offsets(partitions, isolation_level="read_committed")
        starts = await self._admin.beginning_offsets(partitions)
        committed = await self._admin.list_group_offsets(self._app)
        for topic in names:
            unread = sum(
                end - max(starts[tp], committed[tp].offset if tp in committed else 0)
                for tp, end in ends.items()
                if tp.topic == topic
            )
            if unread > 0:
                raise TopologyError(
                    f"{self._app}: {unread:,} records of {topic!r} wait to be read, and this "
                    "topology does not read them: run the former one until it is caught up. "
                    f"{ways_out(self._app)}"
                )

    async def _refuse_old_changelogs(self, difference: Difference, existing: Sequence[str]) -> None:
        """A store that comes back would go on from rows that missed what came between."""
        changelogs = {self._changelog_of[name]: name for name in difference.new_stores}
        partitions = await self._partitions(topic for topic in changelogs if topic in existing)
        if not partitions:
            return
        starts = await self._admin.beginning_offsets(partitions)
        for tp, end in (await self._admin.end_offsets(partitions)).items():
            if end > starts[tp]:
                raise TopologyError(
                    f"{self._app}: store {changelogs[tp.topic]!r} is new, but {tp.topic!r} holds "
                    "rows of an earlier topology: delete that topic and the store begins empty. "
                    f"{ways_out(self._app)}"
                )

    async def _partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        if not (names := list(topics)):
            return []
        infos = await self._admin.describe_topics(names)
        return [
            TopicPartition(i.name, number) for i in infos for number in range(i.partition_count)
        ]

    # The log itself

    async def _create(self) -> None:
        await self._admin.create_missing_topics([NewTopic(self._topic, 1, configs=CONFIG)])

    async def _write(
        self, before: Claim | None, fingerprint: Fingerprint | None, holder: Holder | None
    ) -> None:
        told = None if fingerprint is None else json.loads(fingerprint.encode())
        claim = {"replaces": None if before is None else before.offset, "fingerprint": told}
        if holder is not None:
            claim["holder"] = holder.encode()
        value = json.dumps(claim, sort_keys=True).encode()
        async with Producer(self._client, linger_ms=0) as producer:
            columns = Columns([self._app.encode()], [value], [self._client.now_ms()])
            await producer.send_columns(self._topic, columns, partition=0)
            await producer.flush()

    async def _read(self) -> Claim | None:
        return await read_claim(self._client, self._app)


async def read_claim(client: Client, application_id: str) -> Claim | None:
    """The claim in force of an application, whose topology log exists: reads it to its end."""
    partition = TopicPartition(topology_topic(application_id), 0)
    records: list[tuple[int, bytes | None]] = []
    async with Consumer(client, allow_auto_create_topics=False) as consumer:
        consumer.assign([partition])
        ends = await consumer.end_offsets([partition])
        consumer.seek_to_beginning([partition])
        for _ in range(IDLE_POLLS_MAX):
            if (consumer.position(partition) or 0) >= ends[partition]:
                return fold(records)
            for columns in (await consumer.poll(POLL_MS)).values():
                assert columns.offsets is not None
                records += zip(columns.offsets, columns.values, strict=True)
    raise TopologyError(f"{partition.topic!r} cannot be read to its end")


def refuse(application_id: str, difference: Difference) -> None:
    """TopologyError if the state does not survive the difference."""
    if difference.refusals:
        raise TopologyError(
            f"{application_id}: its state is of another topology: "
            f"{'; '.join(difference.refusals)}. {ways_out(application_id)}"
        )


def ways_out(application_id: str) -> str:
    """What a user can do about state of another topology."""
    return (
        "The ways out: build it as before; another name= for an operator, whose state then begins "
        f"empty; another application id than {application_id!r}; or throw the state away with "
        "`kafkalite-streams reset`"
    )


def internal_topics(application_id: str, existing: Iterable[str]) -> list[str]:
    """The topics that are internal to an application by their names.

    Not those of another application whose id begins with this one's: it has a topology log.
    """
    names = sorted(existing)
    others = [name.removesuffix(SUFFIX) + "-" for name in names if name.endswith(SUFFIX)]
    prefix = f"{application_id}-"
    longer = tuple(other for other in others if len(other) > len(prefix))
    return [
        name
        for name in names
        if name.startswith(prefix)
        and name.endswith(SUFFIXES)
        and not (longer and name.startswith(longer))
        and not (name.endswith(SUFFIX) and name != topology_topic(application_id))
    ]
