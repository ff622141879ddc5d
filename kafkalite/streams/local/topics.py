"""The topics of a topology: sources that must exist, internal topics that are made.      [IO]

Owns   nothing; makes `-repartition` and `-changelog` topics and no others.
Fails  with TopologyError when a source topic does not exist, or when an internal topic exists
       with another number of partitions than the topology needs.
Source Kafka Streams' InternalTopicManager.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from kafkalite.core.admin import Admin, NewTopic
from kafkalite.errors import ApiError, ErrorCode, TopologyError
from kafkalite.streams.local.compile import SubTopology


async def resolve_topics(
    admin: Admin, sub_topologies: Sequence[SubTopology]
) -> tuple[dict[int, tuple[str, ...]], dict[str, int]]:
    """The topics each sub-topology reads, and the partition count of every topic.

    Internal topics are created on the way; a sub-topology comes after those that feed it.
    """
    existing = {topic.name: topic.partition_count for topic in await admin.describe_topics()}
    sources: dict[int, tuple[str, ...]] = {}
    partitions_of: dict[str, int] = dict(existing)
    for sub in sub_topologies:
        external = _matching(sub, existing)
        width = max((partitions_of[topic] for topic in external), default=0)
        for internal in sub.repartition_sources:
            count = internal.partitions or _width_of_writers(
                internal.name, sub_topologies, sources, partitions_of
            )
            width = max(width, count)
        for internal in sub.repartition_sources:
            await _ensure(admin, internal.name, width, internal.config, partitions_of)
        for internal in sub.changelogs:
            await _ensure(admin, internal.name, width, internal.config, partitions_of)
        sources[sub.id] = (*external, *(internal.name for internal in sub.repartition_sources))
    return sources, partitions_of


def _matching(sub: SubTopology, existing: Mapping[str, int]) -> tuple[str, ...]:
    """The source topics of `sub` that exist; one that is named and does not is an error."""
    found: list[str] = []
    for source in sub.source_topics:
        if isinstance(source, re.Pattern):
            found += [topic for topic in sorted(existing) if source.fullmatch(topic)]
        elif source in existing:
            found.append(source)
        else:
            raise TopologyError(f"topic {source!r} does not exist; the topology reads it")
    return tuple(dict.fromkeys(found))


def _width_of_writers(
    topic: str,
    sub_topologies: Sequence[SubTopology],
    sources: Mapping[int, tuple[str, ...]],
    partitions_of: Mapping[str, int],
) -> int:
    """As many partitions as the widest topic that is read by whoever writes `topic`."""
    writers = [sub for sub in sub_topologies if topic in sub.sink_topics and sub.id in sources]
    return max((partitions_of[t] for sub in writers for t in sources[sub.id]), default=1)


async def _ensure(
    admin: Admin, name: str, partitions: int, config: Mapping[str, str], known: dict[str, int]
) -> None:
    if name in known:
        if known[name] != partitions:
            raise TopologyError(
                f"internal topic {name!r} has {known[name]} partitions, the topology needs "
                f"{partitions}: its input was repartitioned; use another application id"
            )
        return
    try:
        await admin.create_topics([NewTopic(name, partitions, configs=dict(config))])
    except ApiError as error:  # another worker was faster
        if error.error_code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise
    known[name] = partitions
