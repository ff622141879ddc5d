"""The topics of a topology: sources that must exist, internal topics that are made.      [IO]

Owns   nothing; makes `-repartition` and `-changelog` topics and no others.
Fails  with TopologyError when a source topic does not exist or has two readers, when an internal
       topic exists with another number of partitions than the topology needs, or when topics that
       are grouped together differ in theirs.
Source Kafka Streams' InternalTopicManager.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.metadata import TopicInfo
from kafkalite.core.types import TopicPartition
from kafkalite.errors import TopologyError
from kafkalite.streams.local.compile import SubTopology
from kafkalite.streams.plan import Node, Process, TopicPattern
from kafkalite.streams.rewrites import InternalTopic, topology_topic

Wanted: TypeAlias = str | TopicPattern  # how a source names what it reads

TOPIC_WAIT_SECONDS: Final = 0.25  # between two looks for a source's topic


async def resolve_topics(
    admin: Admin, sub_topologies: Sequence[SubTopology], bootstrap_servers: str
) -> tuple[dict[int, tuple[str, ...]], dict[str, int]]:
    """The topics each sub-topology reads, and the partition count of every topic.

    Internal topics are created on the way, and output topics that sinks ask for. A repartition
    topic gets the partition count that the topology asks for, else that of the topic it is joined
    with, else that of the widest topic its writers read; a changelog gets that of its sub-topology.
    """
    topics = await admin.describe_topics()
    if missing := missing_sources(sub_topologies, topics):
        complaint = absence(missing, f"at {bootstrap_servers}")
        raise TopologyError(f"{complaint}. {remedy(missing, bootstrap_servers)}")
    partitions_of = {topic.name: topic.partition_count for topic in topics}
    external = external_topics(sub_topologies, topics)
    repartitions, widths = _widths(sub_topologies, external, partitions_of)
    for sub in sub_topologies:
        read = (*external[sub.id], *(topic.name for topic in sub.repartition_sources))
        _check_keys_meet(sub, read, {**partitions_of, **repartitions})
    internal: list[NewTopic] = []
    outputs: list[NewTopic] = []
    for sub in sub_topologies:
        width = widths[sub.id]
        internal += [_new_topic(t, repartitions[t.name]) for t in sub.repartition_sources]
        internal += [_new_topic(t, width) for t in sub.changelogs]
        outputs += [_new_topic(t, t.partitions or width) for t in sub.output_topics.values()]
    _check_counts(internal, partitions_of)
    partitions_of |= await _create_missing(admin, [*internal, *outputs], partitions_of)
    _check_counts(internal, partitions_of)  # other workers may have created topics meanwhile
    sources = {
        sub.id: (*external[sub.id], *(topic.name for topic in sub.repartition_sources))
        for sub in sub_topologies
    }
    return sources, partitions_of


def _check_keys_meet(
    sub: SubTopology, read: Sequence[str], partitions_of: Mapping[str, int]
) -> None:
    """Whether equal keys come to one task wherever there is state by key, or a join.

    Between topics of different partition counts they do not: each topic's would have a row.
    """
    for node in sub.nodes:
        if _meets_others(node) and (told := _widths_above(sub, (node,), read, partitions_of)):
            raise TopologyError(
                f"{node.name!r} joins records of equal keys, but the topics above it differ in "
                f"their partitions ({told}): put a repartition() between, without a number, or "
                "create the topics alike"
            )
    for store in sub.stores:
        if told := _widths_above(sub, store.nodes, read, partitions_of):
            raise TopologyError(
                f"{store.name!r} brings equal keys together, but the topics above it differ in "
                f"their partitions ({told}): put a repartition() between"
            )


def _meets_others(node: Node) -> bool:
    """Whether equal keys of all that is above a node come to one task."""
    return node.joins or (isinstance(node, Process) and bool(node.tables))


def _widths_above(
    sub: SubTopology,
    nodes: Iterable[Node],
    read: Sequence[str],
    partitions_of: Mapping[str, int],
) -> str:
    """The topics above `nodes` and their partition counts, where those differ."""
    above = set[Node]().union(*map(_above, nodes))
    counts = {t: partitions_of[t] for t in read if sub.source_of(t) in above}
    told = ", ".join(f"{topic!r} has {count}" for topic, count in counts.items())
    return told if len(set(counts.values())) > 1 else ""


def _above(node: Node) -> set[Node]:
    """`node` and all that leads to it."""
    found, todo = {node}, [node]
    while todo:
        new = set(todo.pop().parents) - found
        found |= new
        todo += new
    return found


def missing_sources(
    sub_topologies: Sequence[SubTopology], topics: Sequence[TopicInfo]
) -> list[Wanted]:
    """The sources for which no topic exists, in the order of the topology."""
    existing = _Existing.of(sub_topologies, topics)
    wanted = [source for sub in sub_topologies for source in sub.source_topics]
    wanted += [t for sub in sub_topologies for node in sub.plan.global_tables for t in node.topics]
    return [source for source in dict.fromkeys(wanted) if not existing.matching(source)]


async def wait_for_topics(
    admin: Admin,
    sub_topologies: Sequence[SubTopology],
    report: Callable[[Sequence[Wanted]], None] | None,
    stopping: Callable[[], bool],
) -> None:
    """Returns once every source has its topic, or at once if nobody wants a `report`."""
    reported = list[Wanted]()
    while report is not None and not stopping():
        missing = missing_sources(sub_topologies, await admin.describe_topics())
        if missing != reported:
            report(missing)
            reported = missing
        if not missing:
            return
        await asyncio.sleep(TOPIC_WAIT_SECONDS)


def spell_sources(missing: Sequence[Wanted]) -> str:
    """`topic 'words'`, `topics 'a', 'b' and topics that match the pattern 'c.*'`."""
    names = [repr(source) for source in missing if isinstance(source, str)]
    parts = [f"topic{'s' if len(names) > 1 else ''} {', '.join(names)}"] if names else []
    parts += [f"topics that match {_spell(s)}" for s in missing if not isinstance(s, str)]
    return " and ".join(parts)


def absence(missing: Sequence[Wanted], place: str) -> str:
    """That the topology reads topics which do not exist at `place`."""
    is_one = len(missing) == 1 and isinstance(missing[0], str)
    does, it = ("does", "it") if is_one else ("do", "them")
    return f"{spell_sources(missing)} {does} not exist {place}; the topology reads {it}"


def remedy(missing: Sequence[Wanted], bootstrap_servers: str) -> str:
    """The command that creates the topics; the user chooses a name where a pattern must match."""
    names = [source if isinstance(source, str) else "NAME" for source in missing]
    it = "it" if len(names) == 1 else "them"
    return f"To create {it}: {create_command(names, bootstrap_servers)}"


def create_command(names: Sequence[str], bootstrap_servers: str) -> str:
    """What a user types to create topics."""
    return f"kafkalite topics create {' '.join(names)} -b {bootstrap_servers}"


async def source_partitions(
    admin: Admin, sub_topologies: Sequence[SubTopology]
) -> list[TopicPartition]:
    """Every partition of the topics of others that the sub-topologies read, if they exist."""
    topics = await admin.describe_topics()
    existing = _Existing.of(sub_topologies, topics)
    wanted = (source for sub in sub_topologies for source in sub.source_topics)
    names = {name for source in wanted for name in existing.matching(source)}
    return [
        TopicPartition(t.name, p.partition) for t in topics if t.name in names for p in t.partitions
    ]


@dataclass(frozen=True, slots=True)
class _Existing:
    """The topics of the cluster. Patterns match neither brokers' topics nor our internal ones."""

    names: frozenset[str]
    matchable: frozenset[str]

    @classmethod
    def of(cls, sub_topologies: Sequence[SubTopology], topics: Iterable[TopicInfo]) -> _Existing:
        own = {internal.name for sub in sub_topologies for internal in sub.internal_topics}
        own |= {topology_topic(sub.plan.application_id) for sub in sub_topologies}
        names = {topic.name: topic.is_internal for topic in topics}
        matchable = {name for name, is_internal in names.items() if not is_internal}
        return cls(frozenset(names), frozenset(matchable - own))

    def matching(self, wanted: Wanted) -> list[str]:
        """The topics that a source reads."""
        if isinstance(wanted, str):
            return [wanted] if wanted in self.names else []
        return sorted(topic for topic in self.matchable if wanted.fullmatch(topic))


def external_topics(
    sub_topologies: Sequence[SubTopology], topics: Sequence[TopicInfo]
) -> dict[int, tuple[str, ...]]:
    """The topics of others that each sub-topology reads; every one exists and has one reader."""
    existing = _Existing.of(sub_topologies, topics)
    readers: dict[str, Wanted] = {}
    external: dict[int, tuple[str, ...]] = {}
    for sub in sub_topologies:
        before = set(readers)
        for wanted in sub.source_topics:
            for topic in existing.matching(wanted):
                if topic in readers:
                    raise TopologyError(
                        f"topic {topic!r} is meant by {_spell(readers[topic])} and by "
                        f"{_spell(wanted)}; a topic has one reader"
                    )
                readers[topic] = wanted
        external[sub.id] = tuple(topic for topic in readers if topic not in before)
    return external


def _spell(wanted: Wanted) -> str:
    return repr(wanted) if isinstance(wanted, str) else f"the pattern {wanted.pattern!r}"


def _widths(
    sub_topologies: Sequence[SubTopology],
    external: Mapping[int, Sequence[str]],
    partitions_of: Mapping[str, int],
) -> tuple[dict[str, int], dict[int, int]]:
    """How many partitions each repartition topic has, and how many tasks each sub-topology.

    Sub-topologies may feed one another in any order and in circles, so counts grow until none does.
    """
    told = {t.name: t.partitions for sub in sub_topologies for t in sub.repartition_sources}
    joined = [topics for sub in sub_topologies for topics in _joined(sub, external[sub.id])]
    told |= _partners(told, joined, partitions_of)
    repartitions = {name: partitions or 0 for name, partitions in told.items()}
    widths: dict[int, int] = {}
    before: object = None
    while before != (before := (dict(repartitions), dict(widths))):
        for sub in sub_topologies:
            counts = [partitions_of[topic] for topic in external[sub.id]]
            counts += [repartitions[internal.name] for internal in sub.repartition_sources]
            widths[sub.id] = max(counts, default=0)
            for name in sub.repartition_sinks:
                if told[name] is None:
                    repartitions[name] = max(repartitions[name], widths[sub.id])
        for topics in joined:
            open_ = [topic for topic in topics if topic in told and told[topic] is None]
            widest = max((repartitions[topic] for topic in open_), default=0)
            repartitions |= dict.fromkeys(open_, widest)
    return repartitions, widths


def _joined(sub: SubTopology, external: Sequence[str]) -> list[list[str]]:
    """The topics above each join of a sub-topology."""
    read = (*external, *(topic.name for topic in sub.repartition_sources))
    above = [_above(node) for node in sub.nodes if _meets_others(node)]
    return [[topic for topic in read if sub.source_of(topic) in nodes] for nodes in above]


def _partners(
    told: Mapping[str, int | None],
    joined: Iterable[Sequence[str]],
    partitions_of: Mapping[str, int],
) -> dict[str, int]:
    """The partition counts that repartition topics have from the topics they are joined with."""
    known = {topic: count for topic, count in told.items() if count is not None}
    found: dict[str, int] = {}
    todo = [(topics, [t for t in topics if t in told and told[t] is None]) for topics in joined]
    while True:
        counts = {t: n for t, n in partitions_of.items() if t not in told} | known | found
        new: dict[str, int] = {}
        for topics, open_ in todo:
            fixed = [counts[topic] for topic in topics if topic in counts]
            if fixed:
                new |= {topic: fixed[0] for topic in open_ if topic not in found}
        if not new:
            return found
        found |= new


def _new_topic(topic: InternalTopic, partitions: int) -> NewTopic:
    return NewTopic(topic.name, partitions, configs=topic.config)


def _check_counts(internal: Iterable[NewTopic], partitions_of: Mapping[str, int]) -> None:
    """Refuses an internal topic that exists with another number of partitions than needed."""
    for topic in internal:
        count = partitions_of.get(topic.name, topic.partitions)
        if count != topic.partitions:
            raise TopologyError(
                f"internal topic {topic.name!r} has {count} partitions, the topology needs "
                f"{topic.partitions}: its input has other partitions than before, and keys other "
                "places; use another application id, or `kafkalite-streams reset`"
            )


async def _create_missing(
    admin: Admin, topics: Iterable[NewTopic], existing: Collection[str]
) -> dict[str, int]:
    """Creates the topics that do not exist. Returns their partition counts."""
    missing: dict[str, NewTopic] = {}
    for topic in topics:
        if topic.name not in existing:
            missing.setdefault(topic.name, topic)
    if not missing:
        return {}
    await admin.create_missing_topics(missing.values())
    return {t.name: t.partition_count for t in await admin.describe_topics(missing)}
