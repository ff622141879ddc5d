"""Records: produced, fetched, looked up by time and epoch, deleted."""

from __future__ import annotations

import time
from struct import pack
from typing import Any
from uuid import UUID

from asking import Talk

from kafkalite.core.protocol.checksum import crc32c
from kafkalite.core.protocol.compression import Compression
from kafkalite.core.protocol.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from kafkalite.core.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kafkalite.core.protocol.metadata import MetadataRequest, MetadataRequestTopic
from kafkalite.core.protocol.primitives import ZERO_UUID
from kafkalite.core.protocol.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kafkalite.core.protocol.records import encode
from kafkalite.core.protocol.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kafkalite.core.protocol.transactions import (
    DescribeProducersRequest,
    DescribeProducersTopic,
    InitProducerIdRequest,
)
from kafkalite.core.types import Columns

NOBODY = UUID(int=9)
ROOM = 1 << 20


def batch(
    n: int = 1, *, key: bytes | None = b"k", at_ms: int | None = None, **how: Any
) -> bytearray:
    at_ms = int(time.time() * 1000) if at_ms is None else at_ms
    values = [b"v%d" % i for i in range(n)]
    return bytearray(encode(Columns([key] * n, values, [at_ms] * n), **how))


def changed(position: int, value: bytes, n: int = 3, *, sealed: bool = True) -> bytearray:
    """A batch with other bytes at `position`; sealed: with the CRC that fits them."""
    made = batch(n)
    made[position : position + len(value)] = value
    if sealed:
        made[17:21] = pack(">I", crc32c(bytes(made[21:])))
    return made


def produce(
    topic: str,
    records: bytes | bytearray | None,
    index: int = 0,
    acks: int = 1,
    transactional_id: str | None = None,
) -> ProduceRequest:
    data = (TopicProduceData(topic, (PartitionProduceData(index, records),)),)
    return ProduceRequest(transactional_id, acks, 5_000, data)


def producing(talk: Talk) -> None:
    name = talk.topic("t", 2)

    def ask(
        label: str,
        records: bytes | bytearray | None,
        topic: str = name,
        version: int = 8,
        **how: Any,
    ) -> None:
        talk.ask(label, produce(topic, records, **how), version)

    for version in range(3, 12):
        ask(f"v{version}", batch(2), version=version)
    for acks in (-1, 5, -2):
        ask(f"acks {acks}", batch(), acks=acks)
    ask("unknown topic", batch(), talk.name("nowhere"))
    ask("unknown partition", batch(), index=9)
    ask("no bytes", b"")
    ask("a flipped bit", changed(20, b"\xff", sealed=False))
    ask("magic 7", changed(16, b"\7"))
    ask("magic 1", changed(16, b"\1"))
    ask("cut short", batch(3)[:-3])
    ask("two batches", batch() + batch())
    for count in (5, 0, -1):
        ask(f"{count} records counted, 3 there", changed(57, pack(">i", count)))
    ask("a last offset delta of 9", changed(23, pack(">i", 9)))
    ask("a base offset of 5", changed(0, pack(">q", 5), sealed=False))
    ask("a leader epoch of 5", changed(12, pack(">i", 5), sealed=False))
    ask("a control batch", batch(control=True))
    for codec in Compression:
        ask(codec.name, batch(5, compression=codec))
    ask("ZSTD in v6", batch(5, compression=Compression.ZSTD), version=6)
    ask("a timestamp of -1", batch(at_ms=-1))
    ask("a timestamp of 0", batch(at_ms=0))


def producing_as_configured(talk: Talk) -> None:
    now = int(time.time() * 1000)

    def ask(label: str, topic: str, records: bytearray, acks: int = 1) -> None:
        talk.ask(label, produce(topic, records, acks=acks), 8)

    compacted = talk.topic("compacted", cleanup_policy="compact")
    ask("no key where keys count", compacted, batch(key=None))
    ask("a key where keys count", compacted, batch())
    small = talk.topic("small", max_message_bytes="200")
    ask("too large", small, batch(50))
    ask("small enough", small, batch(2))
    ask("stamped by the log", talk.topic("l", message_timestamp_type="LogAppendTime"), batch(2))
    timely = talk.topic(
        "u", message_timestamp_after_max_ms="1000", message_timestamp_before_max_ms="1000"
    )
    ask("from the future", timely, batch(2, at_ms=now + 100_000))
    ask("from the past", timely, batch(2, at_ms=now - 100_000))
    for policy in ("gzip", "uncompressed", "zstd"):
        recompressed = talk.topic(policy, compression_type=policy)
        ask(f"{policy} of plain", recompressed, batch(20))
        ask(f"{policy} of lz4", recompressed, batch(20, compression=Compression.LZ4))
    careful = talk.topic("m", min_insync_replicas="2")
    ask("min.insync.replicas above the replicas", careful, batch(), acks=-1)
    segment = talk.topic("s", segment_bytes="1048576")
    large = encode(Columns([b"k"], [b"x" * 1_048_570], [now]))
    ask("larger than a segment", segment, bytearray(large))


def producing_in_sequence(talk: Talk) -> None:
    name = talk.topic("t")
    mine = talk.producer_id().producer_id

    def ask(label: str, sequence: int, n: int = 1, epoch: int = 0, whose: int = mine) -> None:
        records = batch(n, producer_id=whose, producer_epoch=epoch, base_sequence=sequence)
        talk.ask(label, produce(name, records), 8)

    for version in range(5):
        talk.ask(f"an id in v{version}", InitProducerIdRequest(None, 1_000), version)
    ask("0 to 2", 0, 3)
    ask("3 and 4", 3, 2)
    ask("0 to 2 again", 0, 3)
    ask("3 and 4 again", 3, 2)
    ask("1 to 3", 1, 3)
    ask("9, a gap", 9)
    for sequence in range(5, 12):
        ask(f"{sequence}", sequence)
    ask("0 to 2 long after", 0, 3)
    ask("8 again", 8)
    ask("epoch 1 from 3", 3, 1, 1)
    ask("epoch 1 from 0", 0, 1, 1)
    ask("epoch 0 after epoch 1", 12)
    ask("epoch 0 again after epoch 1", 11)
    ask("epoch -1", 0, 1, -1)
    ask("sequence -1", -1, 1, 1)
    ask("another id from 7", 7, whose=mine + 500)
    ask("another id from 0", 0, whose=mine + 501)
    for label, topic in (("producers", name), ("producers of nowhere", talk.name("nowhere"))):
        request = DescribeProducersRequest((DescribeProducersTopic(topic, (0,)),))
        talk.ask(label, request, 0)


# ---- fetch -------------------------------------------------------------------------------------


def fetch(topics: tuple[FetchTopic, ...] = (), **how: Any) -> FetchRequest:
    return FetchRequest(max_wait_ms=0, min_bytes=1, topics=topics, **how)


def part(index: int, offset: int, bytes_max: int = ROOM, epoch: int = -1) -> FetchPartition:
    return FetchPartition(index, epoch, offset, partition_max_bytes=bytes_max)


def filled(talk: Talk) -> str:
    """A topic with four batches of three in partition 0 and one of two in partition 1."""
    name = talk.topic("t", 3)
    for index, n in ((0, 3), (0, 3), (0, 3), (0, 3), (1, 2)):
        talk.say(produce(name, batch(n), index), 8)
    return name


def topic_id(talk: Talk, name: str) -> UUID:
    answer = talk.say(MetadataRequest((MetadataRequestTopic(name=name),), False), 12)
    found: UUID = answer.topics[0].topic_id
    return found


def fetching(talk: Talk) -> None:
    name = filled(talk)

    def ask(label: str, *parts: FetchPartition, topic: str = name, **how: Any) -> None:
        talk.ask(label, fetch((FetchTopic(topic, partitions=parts),), **how), 11)

    for version in range(4, 13):
        topics = (FetchTopic(name, partitions=(part(0, 0),)),)
        talk.ask(f"v{version}", fetch(topics), version)
    for offset in (4, 12, 13, -1):
        ask(f"from {offset} of 12", part(0, offset))
    ask("unknown partition", part(9, 0))
    ask("unknown topic", part(0, 0), topic=talk.name("nowhere"))
    ask("1 byte of a partition", part(0, 0, 1))
    ask("0 bytes of a partition", part(0, 0, 0))
    ask("1 byte in all", part(0, 0), max_bytes=1)
    ask("1 byte in all, of two", part(0, 0), part(1, 0), max_bytes=1)
    ask("epoch 0", part(0, 0, epoch=0))
    ask("epoch 9", part(0, 0, epoch=9))
    ask("committed", part(0, 0), isolation_level=1)
    ask("committed, at the end", part(0, 12), isolation_level=1)
    talk.ask("nothing", fetch(), 11)
    known = topic_id(talk, name)
    for version in range(13, 17):
        for label, wanted in (("", known), (", unknown id", NOBODY), (", no id", ZERO_UUID)):
            topics = (FetchTopic("", wanted, (part(0, 0),)),)
            talk.ask(f"v{version}{label}", fetch(topics), version)


def fetching_in_sessions(talk: Talk) -> None:
    name = filled(talk)
    known = topic_id(talk, name)
    for version in (11, 13):
        by_id = version >= 13

        def of(*parts: FetchPartition, by_id: bool = by_id) -> tuple[FetchTopic, ...]:
            wanted = FetchTopic("", known, parts) if by_id else FetchTopic(name, partitions=parts)
            return (wanted,)

        def ask(
            label: str,
            session: int,
            epoch: int,
            topics: tuple[FetchTopic, ...] = (),
            forgotten: tuple[ForgottenTopic, ...] = (),
            version: int = version,
        ) -> Any:
            request = fetch(
                topics, session_id=session, session_epoch=epoch, forgotten_topics_data=forgotten
            )
            return talk.ask(f"v{version}: {label}", request, version)

        both = of(part(0, 0), part(1, 2))
        session = ask("a new session", 0, 0, both).session_id
        ask("partition 0 moved on", session, 1, of(part(0, 12)))
        ask("no news", session, 2)
        talk.say(produce(name, batch(), 1), 8)
        ask("news", session, 3)
        ask("the epoch before", session, 3)
        ask("an epoch ahead", session, 9)
        gone = ForgottenTopic("", known, (0,)) if by_id else ForgottenTopic(name, partitions=(0,))
        ask("partition 0 forgotten", session, 4, (), (gone,))
        ask("beyond the end", session, 5, of(part(1, 1_000)))
        ask("an unknown session", session + 77_777, 1)
        ask("the end of the session", session, -1)
        ask("after the end", session, 6)
        ask("epoch 5 of no session", 0, 5, both)


# ---- offsets -----------------------------------------------------------------------------------


def looking_up(talk: Talk) -> None:
    name = talk.topic("t", 2)
    for i in range(5):
        talk.say(produce(name, batch(2, at_ms=1_000_000 + 1_000 * i)), 8)

    def ask(
        label: str, at: int, version: int = 8, topic: str = name, index: int = 0, **how: Any
    ) -> None:
        wanted = ListOffsetsPartition(index, how.pop("epoch", -1), at)
        request = ListOffsetsRequest(
            -1, how.pop("isolation", 0), (ListOffsetsTopic(topic, (wanted,)),)
        )
        talk.ask(label, request, version)

    for version in range(1, 9):
        ask(f"v{version}", 1_002_500, version)
    for at in (-1, -2, -3, 0, 1_000_000, 1_004_000, 1_004_001):
        ask(f"at {at}", at)
    ask("-3 before v7", -3, 6)
    ask("the end of the committed", -1, isolation=1)
    ask("unknown partition", -1, index=9)
    ask("unknown topic", -1, topic=talk.name("nowhere"))
    ask("epoch 0", -1, epoch=0)
    ask("epoch 5", -1, epoch=5)
    for at in (-1, -2, -3, 5):
        ask(f"at {at} in an empty log", at, index=1)
    twice = (ListOffsetsPartition(0, -1, -1), ListOffsetsPartition(0, -1, -2))
    talk.ask("twice", ListOffsetsRequest(-1, 0, (ListOffsetsTopic(name, twice),)), 5)

    def epoch_end(
        label: str, epoch: int, version: int = 3, topic: str = name, index: int = 0, now: int = -1
    ) -> None:
        wanted = OffsetForLeaderPartition(index, now, epoch)
        request = OffsetForLeaderEpochRequest(-1, (OffsetForLeaderTopic(topic, (wanted,)),))
        talk.ask(label, request, version)

    for version in (2, 3, 4):
        epoch_end(f"the end of an epoch, v{version}", 0, version)
    for epoch in (-1, 1, 99):
        epoch_end(f"the end of epoch {epoch}", epoch)
    epoch_end("the end of an epoch that has not written", 0, index=1)
    epoch_end("the end of an epoch, from epoch 9", 0, now=9)
    epoch_end("the end of an epoch, unknown partition", 0, index=9)
    epoch_end("the end of an epoch, unknown topic", 0, topic=talk.name("nowhere"))


def looking_up_segments(talk: Talk) -> None:
    """ListOffsets v0, which tells where segments begin, by the times of their files."""
    name = talk.topic("t", 2, segment_bytes="100")  # a segment for each batch
    for _ in range(4):
        talk.say(produce(name, batch(2)), 8)

    def ask(
        label: str, at: int, most: int = 1, topic: str = name, index: int = 0, replica: int = -1
    ) -> None:
        wanted = ListOffsetsPartition(index, -1, at, most)
        request = ListOffsetsRequest(replica, 0, (ListOffsetsTopic(topic, (wanted,)),))
        talk.ask(label, request, 0)

    future = (1 << 63) - 1
    for at in (-1, -2, -3, -4, 0, 1_000_000, future):
        ask(f"at {at}", at)
        ask(f"at {at}, nine of them", at, 9)
        ask(f"at {at} in an empty log", at, 9, index=1)
    for most in (0, 2, 5):
        ask(f"the latest {most}", -1, most)
    ask("unknown partition", -1, index=9)
    ask("unknown topic", -1, topic=talk.name("nowhere"))
    twice = (ListOffsetsPartition(0, -1, -1), ListOffsetsPartition(0, -1, -2))
    talk.ask("twice", ListOffsetsRequest(-1, 0, (ListOffsetsTopic(name, twice),)), 0)
    gone = DeleteRecordsTopic(name, (DeleteRecordsPartition(0, 3),))
    talk.say(DeleteRecordsRequest((gone,), 5_000), 1)
    ask("the earliest behind deleted records", -2)


def deleting_records(talk: Talk) -> None:
    name = talk.topic("t")
    for i in range(5):
        talk.say(produce(name, batch(2, at_ms=1_000_000 + 1_000 * i)), 8)

    def ask(label: str, offset: int, topic: str = name, index: int = 0, version: int = 1) -> None:
        wanted = DeleteRecordsTopic(topic, (DeleteRecordsPartition(index, offset),))
        talk.ask(label, DeleteRecordsRequest((wanted,), 5_000), version)

    for offset in (3, 2, 99, -2):
        ask(f"below {offset} of 10", offset)
    for version in range(3):
        ask(f"v{version}", 4 + version, version=version)
    ask("unknown partition", 1, index=9)
    ask("unknown topic", 1, topic=talk.name("nowhere"))
    request = ListOffsetsRequest(
        -1, 0, (ListOffsetsTopic(name, (ListOffsetsPartition(0, -1, -2),)),)
    )
    talk.ask("the start then", request, 5)
    talk.ask("a fetch below it", fetch((FetchTopic(name, partitions=(part(0, 3),)),)), 11)
    ask("all of them", -1)
    for policy in ("compact", "compact,delete"):
        kept = talk.topic(policy.replace(",", "-"), cleanup_policy=policy)
        talk.say(produce(kept, batch(2)), 8)
        ask(f"where the policy is {policy}", 1, kept)
