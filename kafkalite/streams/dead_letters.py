"""Dead letters of an application: looked at, and sent again to where they came from.       [IO]

    letters     the records of the dead letter topic, with the story that their headers tell
    replay      key, value, headers and timestamp as they were, into the original partition

A replay writes its letters and how far it has come in one transaction, as offsets of a group of its
own (`<application id>-dlq`). Letters that a filter leaves out stay for later: the note of the
offset names those behind it that are done.

A header counts how often a record was replayed. A letter that was replayed too often and came back
is left alone.

Owns   the form of the progress, and the header that counts replays.
Never  deletes a letter.
Fails  with TopologyError: no dead letter topic, progress with too many gaps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Final

from kafkalite.clients.admin.client import Admin
from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import Consumer, OffsetAndMetadata
from kafkalite.clients.producer.transactional import TransactionalProducer
from kafkalite.core.types import Columns, Headers, TopicPartition
from kafkalite.errors import TopologyError
from kafkalite.streams.local.failures import HEADER
from kafkalite.streams.plan import Plan

REPLAYS: Final = "__streams.replays"
REPLAYS_MAX: Final = 3
BATCH: Final = 500  # letters in one transaction
NOTE_CHARACTERS_MAX: Final = 4_000  # of an offset; brokers take 4,096
POLL_MS: Final = 500


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter. `topic`, `partition`, `offset`: of the record that it is about."""

    at: TopicPartition
    at_offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers  # of the record
    story: dict[str, str]

    @property
    def topic(self) -> str:
        """The position of the record."""
        return self.story.get("topic", "")

    @property
    def partition(self) -> int:
        """Its partition there."""
        return _number(self.story.get("partition", ""))

    @property
    def offset(self) -> int:
        """Its offset there."""
        return _number(self.story.get("offset", ""))

    @property
    def error(self) -> str:
        """The type of the error."""
        return self.story.get("exception", "")

    @property
    def replays(self) -> int:
        """How often the record was replayed already."""
        counts = [data for name, data in self.headers if name == REPLAYS]
        return int(counts[-1]) if counts and counts[-1] and counts[-1].isdigit() else 0

    @property
    def is_cut(self) -> bool:
        """Whether the record is not here: it did not fit into the letter, or no worker wrote it."""
        return (self.key is None and self.value is None) or not self.topic

    def again(self) -> Columns:
        """The record as it was, one replay more."""
        kept = tuple(header for header in self.headers if header[0] != REPLAYS)
        headers = (*kept, (REPLAYS, str(self.replays + 1).encode()))
        return Columns([self.key], [self.value], [self.timestamp], None, [headers])


def _number(text: str) -> int:
    return int(text) if text.isdigit() else -1


def topic_of(plan: Plan) -> str:
    """The application's dead letter topic. TopologyError where it has none."""
    if plan.dead_letter_topic is None:
        raise TopologyError(
            f"{plan.application_id}: it has no dead letters: Streams(…, dead_letter_topic=…)"
        )
    return plan.dead_letter_topic


async def letters(client: Client, topic: str) -> AsyncIterator[Letter]:
    """Every letter up to the end that the topic has now."""
    async with Consumer(client, isolation_level="read_committed") as consumer:
        described = await _partitions(client, topic)
        ends = await consumer.end_offsets(described)
        consumer.assign(described)
        consumer.seek_to_beginning(described)
        while any((consumer.position(tp) or 0) < end for tp, end in ends.items()):
            for tp, columns in (await consumer.poll(timeout_ms=POLL_MS)).items():
                for letter in _read(tp, columns):
                    if letter.at_offset < ends[tp]:
                        yield letter


async def _partitions(client: Client, topic: str) -> list[TopicPartition]:
    async with Admin(client) as admin:
        (found,) = await admin.describe_topics([topic])
    return [TopicPartition(topic, number) for number in range(len(found.partitions))]


def _read(at: TopicPartition, columns: Columns) -> Iterable[Letter]:
    assert columns.offsets is not None
    headers = columns.headers or [()] * len(columns)
    for index, (offset, all_headers) in enumerate(zip(columns.offsets, headers, strict=True)):
        key, value = columns.keys[index], columns.values[index]
        story = {
            name.removeprefix(HEADER): (data or b"").decode(errors="replace")
            for name, data in all_headers
            if name.startswith(HEADER)
        }
        own = tuple(header for header in all_headers if not header[0].startswith(HEADER))
        key = None if key is None else bytes(key)
        value = None if value is None else bytes(value)
        yield Letter(at, offset, key, value, columns.timestamps[index], own, story)


@dataclass(slots=True)
class Progress:
    """The letters of one partition that are done: all before `offset`, and `beyond` it some."""

    offset: int = 0
    beyond: set[int] = field(default_factory=set)

    def has(self, offset: int) -> bool:
        """Whether a letter is done."""
        return offset < self.offset or offset in self.beyond

    def add(self, first: int, last: int) -> None:
        """A letter, with the offsets before it that hold none."""
        if first <= self.offset:
            self.offset = max(self.offset, last + 1)
        else:
            self.beyond |= set(range(first, last + 1))
        while self.offset in self.beyond:
            self.beyond.discard(self.offset)
            self.offset += 1

    def dump(self) -> OffsetAndMetadata:
        """As an offset to commit, with a note of ranges."""
        ranges: list[list[int]] = []
        for offset in sorted(self.beyond):
            if ranges and ranges[-1][1] == offset - 1:
                ranges[-1][1] = offset
            else:
                ranges.append([offset, offset])
        note = ",".join(f"{first}-{last}" for first, last in ranges)
        if len(note) > NOTE_CHARACTERS_MAX:
            raise TopologyError(
                "too many letters between those that were replayed: replay some without a filter"
            )
        return OffsetAndMetadata(self.offset, metadata=note)

    @classmethod
    def load(cls, entry: OffsetAndMetadata) -> Progress:
        """The content that `dump` wrote."""
        beyond: set[int] = set()
        for part in filter(None, entry.metadata.split(",")):
            first, last = part.split("-")
            beyond |= set(range(int(first), int(last) + 1))
        return cls(entry.offset, beyond)


@dataclass(slots=True)
class Replayed:
    """The result of a replay, done or planned: the numbers of letters by topic, and of others."""

    sent: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    failed_again: int = 0  # too often
    cut: int = 0  # without their record
    done_before: int = 0


async def replay(
    client: Client,
    plan: Plan,
    *,
    topic: str | None = None,
    error: str | None = None,
    force: bool = False,
    execute: bool = False,
) -> Replayed:
    """Sends letters again, those of a `topic` or `error` if given; without `execute` none."""
    group, source = f"{plan.application_id}-dlq", topic_of(plan)
    result = Replayed()
    async with Admin(client) as admin:
        committed = await admin.list_group_offsets(group)
    progress: dict[TopicPartition, Progress] = defaultdict(Progress)
    progress |= {tp: Progress.load(entry) for tp, entry in committed.items() if tp.topic == source}
    batch: list[tuple[Letter, int]] = []  # with the first offset behind the letter before it
    behind: dict[TopicPartition, int] = defaultdict(int)
    async with TransactionalProducer(client, group) as producer:
        async for letter in letters(client, source):
            first, behind[letter.at] = behind[letter.at], letter.at_offset + 1
            if topic not in (None, letter.topic) or error not in (None, letter.error):
                continue
            if progress[letter.at].has(letter.at_offset):
                result.done_before += 1
            elif letter.is_cut:
                result.cut += 1
            elif letter.replays >= REPLAYS_MAX and not force:
                result.failed_again += 1
            else:
                result.sent[letter.topic] += 1
                batch.append((letter, first))
            if execute and len(batch) >= BATCH:
                await _send(producer, group, batch, progress)
                batch = []
        if execute and batch:
            await _send(producer, group, batch, progress)
    return result


async def _send(
    producer: TransactionalProducer,
    group: str,
    batch: Iterable[tuple[Letter, int]],
    progress: dict[TopicPartition, Progress],
) -> None:
    """Letters and progress in one transaction."""
    touched: dict[TopicPartition, OffsetAndMetadata] = {}
    producer.begin()
    for letter, first in batch:
        await producer.send_columns(letter.topic, letter.again(), partition=letter.partition)
        progress[letter.at].add(first, letter.at_offset)
        touched[letter.at] = progress[letter.at].dump()
    await producer.send_offsets(touched, group)
    await producer.commit()
