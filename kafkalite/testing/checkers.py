"""Checks of a recorded history: what clients did and saw, and what brokers hold.             [P]

    history = History()
    history.sends.append(Send("p1", tp, b"p1:0", began=1, ended=5, offset=17))
    …
    violations = check_all(history)

    acknowledged   no acknowledged record is lost, or at another offset than was said
    once           no record twice; those of an idempotent producer in its order
    replicas       equal below the high watermark: offsets, leader epochs, bytes
    leaders        one broker an epoch, and epochs only grow
    held           one broker leads in an epoch; no high watermark falls; who leads has in its log
                   what leaders before it called committed
    commits        committed offsets never go back, and are some that a member committed
    transactions   whole or absent for readers of committed records, as the producer was told
    linearizable   each partition is one log: appends, reads and ends agree with real time

Every value that clients send is unique: it names the record. Times are those of one clock, in any
unit; `ended` is None where the client never learnt how its operation ended.

Two kinds of partitions promise less (`History.forgiven_until`): those of a topic with
unclean.leader.election.enable, once a replica leads that was not in sync; and those of a topic that
was deleted and made again. What was acknowledged before may be gone. Still no record is at another
offset than was said, none comes back with the next topic of that name, what is read was sent; and
for all that begins later the whole promise holds. After two such elections a record may be at
another offset, too: where it was first, unanswered, before the other replica led in between.

Owns   what counts as a violation. Each check returns all that it finds.
Never  knows a broker or a client: whoever runs them writes the history.
Source Jepsen's checkers; Herlihy and Wing, "Linearizability"; KIP-98, KIP-101.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import combinations
from typing import Final

from kafkalite.core.types import NO_EPOCH, TopicPartition


@dataclass(frozen=True, slots=True)
class Violation:
    """One rule that was broken, and where."""

    check: str
    what: str

    def __str__(self) -> str:
        return f"{self.check}: {self.what}"


@dataclass(frozen=True, slots=True)
class Send:
    """One record of a producer. `offset` is known if it was acknowledged; `is_refused` if it is
    certainly not in the log. Sends of a producer to a partition are in the order of the list."""

    producer: str
    partition: TopicPartition
    value: bytes
    began: float
    ended: float | None = None
    offset: int | None = None
    is_refused: bool = False
    is_idempotent: bool = True


@dataclass(frozen=True, slots=True)
class Read:
    """Records of one fetch: all that a reader sees from `position` up to `next_position`."""

    reader: str
    partition: TopicPartition
    position: int
    next_position: int
    records: Mapping[int, bytes]  # by offset
    began: float
    ended: float
    is_read_committed: bool = True


@dataclass(frozen=True, slots=True)
class End:
    """What a broker said is the end of a partition for readers of all records."""

    partition: TopicPartition
    offset: int
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed offset of a group; acknowledged if `ended` is known."""

    group: str
    partition: TopicPartition
    offset: int
    began: float
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """What a broker said is a group's committed offset; None for none."""

    group: str
    partition: TopicPartition
    offset: int | None
    began: float
    ended: float


class TransactionEnd(Enum):
    """How a transaction ended, as its producer knows."""

    COMMITTED = "every record is there for readers of committed records"
    ABORTED = "no record is"
    UNKNOWN = "all of them, or none"


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction's records, and its end."""

    producer: str
    values: Mapping[TopicPartition, tuple[bytes, ...]]
    end: TransactionEnd = TransactionEnd.UNKNOWN


@dataclass(frozen=True, slots=True)
class Leader:
    """A broker led a partition in an epoch. Of one partition in the order of the changes."""

    partition: TopicPartition
    leader_epoch: int
    node_id: int


@dataclass(frozen=True, slots=True)
class Replica:
    """What one broker's log of a partition holds, from its start: offset → leader epoch, bytes."""

    node_id: int
    partition: TopicPartition
    log_start_offset: int
    high_watermark: int
    records: Mapping[int, tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class Held:
    """What a broker had of a partition at some moment. In the order of time. `life` is another
    number for each start of the broker and each time that it opened the log."""

    node_id: int
    life: int
    partition: TopicPartition
    leader_epoch: int
    is_leader: bool
    high_watermark: int
    log_end_offset: int


@dataclass(slots=True)
class History:
    """Everything that was recorded. `logs` are the partitions as readers of committed records find
    them in the end, by offset; `log_starts` where they begin, if not at 0."""

    sends: list[Send] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    committed: list[CommittedOffset] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    leaders: list[Leader] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    replicas: list[Replica] = field(default_factory=list)
    stale: list[tuple[float, float]] = field(default_factory=list)
    staleness: float = 0.0
    # Until when somebody led who lacked records, or led what is deleted by now; see above.
    forgiven_until: dict[TopicPartition, float] = field(default_factory=dict)
    unclean_epochs: dict[TopicPartition, set[int]] = field(default_factory=dict)
    unclean_at: dict[TopicPartition, list[float]] = field(default_factory=dict)  # the elections
    deleted_at: dict[TopicPartition, float] = field(default_factory=dict)  # the last time
    logs: dict[TopicPartition, Mapping[int, bytes]] = field(default_factory=dict)
    log_starts: dict[TopicPartition, int] = field(default_factory=dict)

    def is_forgiven(self, partition: TopicPartition, began: float) -> bool:
        """Whether what began then may be gone."""
        return began <= self.forgiven_until.get(partition, -math.inf)

    def may_be_elsewhere(self, partition: TopicPartition, began: float) -> bool:
        """Whether what was sent then may be at another offset than was said."""
        return sum(began <= at for at in self.unclean_at.get(partition, ())) > 1

    def may_have_lost(self, partition: TopicPartition, since: int, until: int) -> bool:
        """Whether an epoch after `since`, `until` at the last, began with an unclean election."""
        return any(since < each <= until for each in self.unclean_epochs.get(partition, ()))


Check = Callable[[History], Iterable[Violation]]


def check_all(history: History) -> list[Violation]:
    """Every violation that any check finds."""
    return [violation for check in CHECKS for violation in check(history)]


def acknowledged(history: History) -> Iterator[Violation]:
    """No acknowledged record is lost, or at another offset."""
    open_or_aborted = _values_of(history, TransactionEnd.ABORTED, TransactionEnd.UNKNOWN)
    for send in history.sends:
        if send.partition not in history.logs or send.value in open_or_aborted:
            continue
        log = history.logs[send.partition]
        start = history.log_starts.get(send.partition, 0)
        if send.offset is not None and send.offset >= start:
            found = log.get(send.offset)
            if found == send.value:
                deleted_at = history.deleted_at.get(send.partition, -math.inf)
                if send.ended is not None and send.ended < deleted_at:
                    what = f"{send.partition} offset {send.offset}: {send.value!r}"
                    yield Violation("acknowledged", f"{what} is back, though it was deleted")
            elif history.is_forgiven(send.partition, send.began):
                is_elsewhere = send.value in log.values()
                if is_elsewhere and not history.may_be_elsewhere(send.partition, send.began):
                    what = f"{send.partition}: {send.value!r} is not at {send.offset} alone"
                    yield Violation("acknowledged", what)
            else:
                there = "nothing" if found is None else repr(found)
                what = f"{send.partition} offset {send.offset}: {there} instead of {send.value!r}"
                yield Violation("acknowledged", f"{what}, which {send.producer} was told is there")
        elif send.is_refused and send.value in log.values():
            yield Violation("acknowledged", f"{send.partition}: {send.value!r} was refused")


def once(history: History) -> Iterator[Violation]:
    """No record of an idempotent producer twice; its records in the order of its sends."""
    numbers: dict[tuple[TopicPartition, bytes], tuple[str, int]] = {}
    for number, send in enumerate(history.sends):
        if send.is_idempotent:
            numbers[send.partition, send.value] = send.producer, number
    for partition, log in history.logs.items():
        places: dict[bytes, int] = {}
        last: dict[str, tuple[int, bytes]] = {}
        for offset, value in sorted(log.items()):
            known = numbers.get((partition, value))
            if known is None:
                continue
            if value in places:
                what = f"{partition}: {value!r} is at {places[value]} and at {offset}"
                yield Violation("once", what)
                continue
            places[value] = offset
            producer, number = known
            if producer in last and last[producer][0] > number:
                what = f"{partition} offset {offset}: {value!r} is behind {last[producer][1]!r}"
                yield Violation("once", f"{what}, which {producer} sent later")
            last[producer] = max(last.get(producer, (-1, b"")), (number, value))


def replicas(history: History) -> Iterator[Violation]:
    """Replicas are equal below the high watermark that both know."""
    by_partition: dict[TopicPartition, list[Replica]] = defaultdict(list)
    for replica in history.replicas:
        by_partition[replica.partition].append(replica)
    for partition, found in by_partition.items():
        for one, other in combinations(found, 2):
            start = max(one.log_start_offset, other.log_start_offset)
            end = min(one.high_watermark, other.high_watermark)
            offsets = {o for o in (*one.records, *other.records) if start <= o < end}
            for offset in sorted(offsets):
                mine, theirs = one.records.get(offset), other.records.get(offset)
                if mine != theirs:
                    what = f"{partition} offset {offset}: {mine} on broker {one.node_id}"
                    yield Violation("replicas", f"{what}, {theirs} on broker {other.node_id}")
                    break  # the rest differs too


def at_rest(history: History) -> Iterator[Violation]:
    """Where nothing happens any more, replicas are equal to the end, and have the same high
    watermark. Not one of `check_all`, which does not know when that is."""
    first: dict[TopicPartition, Replica] = {}
    for replica in history.replicas:
        known = first.setdefault(replica.partition, replica)
        if (replica.high_watermark, replica.records) != (known.high_watermark, known.records):
            mine, theirs = (
                f"broker {each.node_id} has {len(each.records)} batches, the last at "
                f"{max(each.records, default=-1)}, and the high watermark {each.high_watermark}"
                for each in (known, replica)
            )
            yield Violation("at rest", f"{replica.partition}: {mine}; {theirs}")


def leaders(history: History) -> Iterator[Violation]:
    """An epoch has one leader, and later leaders have greater epochs."""
    by_epoch: dict[tuple[TopicPartition, int], int] = {}
    last: dict[TopicPartition, int] = {}
    for led in history.leaders:
        known = by_epoch.setdefault((led.partition, led.leader_epoch), led.node_id)
        if known != led.node_id:
            what = f"{led.partition} epoch {led.leader_epoch}: led by {known} and {led.node_id}"
            yield Violation("leaders", what)
        if led.leader_epoch < last.get(led.partition, -1):
            what = f"{led.partition}: epoch {led.leader_epoch} after {last[led.partition]}"
            yield Violation("leaders", what)
        last[led.partition] = max(led.leader_epoch, last.get(led.partition, -1))


def held(history: History) -> Iterator[Violation]:
    """A high watermark never falls, and what is below it is in the log of each later leader."""
    # The high watermark, an epoch that is no later than it, and the last one.
    known: dict[tuple[int, int, TopicPartition], tuple[int, int, int]] = {}
    by_epoch: dict[tuple[TopicPartition, int], int] = {}
    committed: dict[TopicPartition, dict[int, int]] = defaultdict(dict)  # the highest, by epoch
    begun: dict[TopicPartition, dict[int, int]] = defaultdict(dict)  # with which log end
    for seen in history.held:
        partition, epoch, node_id = seen.partition, seen.leader_epoch, seen.node_id
        where = f"{partition} on broker {node_id} in epoch {epoch}"
        key = node_id, seen.life, partition
        before, since, last = known.get(key, (-1, NO_EPOCH, NO_EPOCH))
        if seen.high_watermark < before and not history.may_have_lost(partition, since, epoch):
            what = f"{where}: high watermark {seen.high_watermark} after {before}"
            yield Violation("held", what)
        if seen.high_watermark > before:
            since = last  # it may have risen before the epoch began
        elif seen.high_watermark < before:
            since = epoch
        known[key] = seen.high_watermark, since, epoch
        if not seen.is_leader:
            continue
        if by_epoch.setdefault((partition, epoch), node_id) != node_id:
            yield Violation("held", f"{where}: broker {by_epoch[partition, epoch]} led it, too")
        begun[partition].setdefault(epoch, seen.log_end_offset)
        highest = committed[partition].get(epoch, -1)
        committed[partition][epoch] = max(highest, seen.high_watermark)
    for partition, ends in begun.items():
        for epoch, end in sorted(ends.items()):
            for earlier, highest in committed[partition].items():
                if history.may_have_lost(partition, earlier, epoch):
                    continue
                if earlier < epoch and highest > end:
                    what = f"{partition}: the log ends at {end} in epoch {epoch}"
                    yield Violation("held", f"{what}, {highest} was committed in {earlier}")


def commits(history: History) -> Iterator[Violation]:
    """A committed offset is one that was committed, and never an earlier one than was known: for
    groups whose members only move forward."""
    made: dict[tuple[str, TopicPartition], list[Commit]] = defaultdict(list)
    asked: dict[tuple[str, TopicPartition], list[CommittedOffset]] = defaultdict(list)
    for commit in history.commits:
        made[commit.group, commit.partition].append(commit)
    for seen in history.committed:
        asked[seen.group, seen.partition].append(seen)
    for (group, partition), answers in asked.items():
        known = [(c.ended, c.offset) for c in made[group, partition] if c.ended is not None]
        known += [(a.ended, a.offset) for a in answers if a.offset is not None]
        least = _Highest(known)
        possible = made[group, partition]
        for answer in sorted(answers, key=_began):
            offset = answer.offset
            before = least.ended_before(answer.began - history.staleness)
            if _is_within(history.stale, answer.began, answer.ended):
                before = None
            where = f"group {group}, {partition}"
            if offset is not None and not any(
                c.offset == offset and c.began <= answer.ended for c in possible
            ):
                yield Violation("commits", f"{where}: {offset} was committed by nobody")
            if before is not None and (offset is None or offset < before):
                yield Violation("commits", f"{where}: {offset} after {before}")


def transactions(history: History) -> Iterator[Violation]:
    """Readers of committed records see all of a transaction or nothing."""
    seen = {(read.partition, value) for read in history.reads if read.is_read_committed
            for value in read.records.values()}  # fmt: skip
    in_logs = {(tp, value) for tp, log in history.logs.items() for value in log.values()}
    for transaction in history.transactions:
        expected = {(tp, v) for tp, values in transaction.values.items() for v in values}
        checkable = {each for each in expected if each[0] in history.logs}
        there = checkable & in_logs
        name = f"{transaction.producer}'s transaction of {len(expected)} records"
        if transaction.end is TransactionEnd.ABORTED and (there or expected & seen):
            some = sorted(there | expected & seen)[0]
            yield Violation("transactions", f"{name} was aborted, and {some[1]!r} was read")
        elif transaction.end is TransactionEnd.COMMITTED and there != checkable:
            missing = sorted(checkable - there)[0]
            yield Violation("transactions", f"{name} was committed, and {missing[1]!r} is missing")
        elif there and there != checkable:
            missing = sorted(checkable - there)[0]
            yield Violation("transactions", f"{name} is there without {missing[1]!r}")
        elif not there and checkable and expected & seen:
            gone = sorted(expected & seen)[0]
            yield Violation("transactions", f"{name} is not there, and {gone[1]!r} was read")


def linearizable(history: History) -> Iterator[Violation]:
    """Each partition is one log, in which an append takes effect between its call and its answer.

    The offsets give the order, so it is enough that an offset has one value, that the order does
    not contradict real time, and that reads miss nothing that was there before they began.
    """
    sends: dict[TopicPartition, list[Send]] = defaultdict(list)
    reads: dict[TopicPartition, list[Read]] = defaultdict(list)
    ends: dict[TopicPartition, list[End]] = defaultdict(list)
    for send in history.sends:
        sends[send.partition].append(send)
    for read in history.reads:
        reads[read.partition].append(read)
    for end in history.ends:
        ends[end.partition].append(end)
    hidden = _values_of(history, TransactionEnd.ABORTED, TransactionEnd.UNKNOWN)
    for partition in {**sends, **reads, **ends}:
        fresh = [
            replace(end, began=end.began - history.staleness)
            for end in ends[partition]
            if not _is_within(history.stale, end.began, end.ended)
        ]
        log = _Log(
            partition, sends[partition], reads[partition], fresh, hidden,
            history.forgiven_until.get(partition, -math.inf),
        )  # fmt: skip
        yield from log.one_value_an_offset()
        yield from log.appends_in_time()
        yield from log.reads_in_time()
        yield from log.reads_miss_nothing()
        yield from log.ends_in_time()


CHECKS: Final[tuple[Check, ...]] = (
    acknowledged, once, replicas, leaders, held, commits, transactions, linearizable,
)  # fmt: skip


# ---- parts -------------------------------------------------------------------------------------


class _Highest:
    """The highest number among those that were known before a time."""

    def __init__(self, known: Iterable[tuple[float, int]]) -> None:
        self._times: list[float] = []
        self._highest: list[int] = []
        for time, number in sorted(known):
            if self._highest:
                number = max(number, self._highest[-1])
            self._times.append(time)
            self._highest.append(number)

    def ended_before(self, time: float) -> int | None:
        """The highest of those that were known strictly before."""
        count = bisect_left(self._times, time)
        return self._highest[count - 1] if count else None


@dataclass(frozen=True, slots=True)
class _Log:
    """One partition's part of a history."""

    partition: TopicPartition
    sends: list[Send]
    reads: list[Read]
    ends: list[End]
    hidden: frozenset[bytes]  # values that readers of committed records need not see
    forgiven_until: float

    def _appended(self) -> list[tuple[int, Send, float]]:
        """Appends whose offset is known and which must stay, with the time at which it certainly
        was known."""
        return [(s.offset, s, math.inf if s.ended is None else s.ended)
                for s in self.sends
                if s.offset is not None and s.began > self.forgiven_until]  # fmt: skip

    def _lasting(self) -> list[Read]:
        """Reads of what must stay."""
        return [read for read in self.reads if read.began > self.forgiven_until]

    def one_value_an_offset(self) -> Iterator[Violation]:
        values: dict[int, bytes] = {}
        told = [(offset, send.value) for offset, send, _ in self._appended()]
        told += [each for read in self._lasting() for each in read.records.items()]
        for offset, value in told:
            known = values.setdefault(offset, value)
            if known != value:
                yield self._violation(f"offset {offset} has {known!r} and {value!r}")

    def appends_in_time(self) -> Iterator[Violation]:
        """An append that began after another was acknowledged has the greater offset."""
        appended = self._appended()
        before = _Highest((ended, offset) for offset, _, ended in appended)
        for offset, send, _ in appended:
            highest = before.ended_before(send.began)
            if highest is not None and highest >= offset:
                what = f"{send.value!r} is at {offset} and began after {highest} was acknowledged"
                yield self._violation(what)

    def reads_in_time(self) -> Iterator[Violation]:
        """Nothing is read before it was sent, and only what was sent."""
        began = {send.value: send.began for send in self.sends}
        for read in self.reads:
            for offset, value in read.records.items():
                if not read.position <= offset < read.next_position:
                    what = f"{read.reader} read {offset}, from {read.position}"
                    yield self._violation(f"{what} to {read.next_position}")
                if began and value not in began:
                    yield self._violation(f"{read.reader} read {value!r}, which nobody sent")
                elif began and began[value] > read.ended:
                    yield self._violation(f"{read.reader} read {value!r} before it was sent")

    def reads_miss_nothing(self) -> Iterator[Violation]:
        """A read that passed an acknowledged record has it."""
        appended = sorted(
            (offset, send.value) for offset, send, _ in self._appended()
            if send.value not in self.hidden
        )  # fmt: skip
        for read in self._lasting():
            first = bisect_left(appended, (read.position, b""))
            last = bisect_left(appended, (read.next_position, b""))
            for offset, value in appended[first:last]:
                if offset not in read.records:
                    yield self._violation(f"{read.reader} passed {offset} without {value!r}")

    def ends_in_time(self) -> Iterator[Violation]:
        """An end is beyond all that was acknowledged, read or the end before it was asked for."""
        known = [(ended, offset + 1) for offset, _, ended in self._appended()]
        known += [(read.ended, offset + 1) for read in self._lasting() for offset in read.records]
        ends = [end for end in self.ends if end.began > self.forgiven_until]
        known += [(end.ended, end.offset) for end in ends]
        before = _Highest(known)
        for end in ends:
            highest = before.ended_before(end.began)
            if highest is not None and end.offset < highest:
                yield self._violation(f"the end is {end.offset} after {highest}")

    def _violation(self, what: str) -> Violation:
        return Violation("linearizable", f"{self.partition}: {what}")


def _values_of(history: History, *ends: TransactionEnd) -> frozenset[bytes]:
    """The values of transactions that ended so."""
    return frozenset(
        value
        for transaction in history.transactions
        if transaction.end in ends
        for values in transaction.values.values()
        for value in values
    )


def _is_within(times: Iterable[tuple[float, float]], began: float, ended: float) -> bool:
    """Whether some of them overlaps with the time from `began` to `ended`."""
    return any(first <= ended and began <= last for first, last in times)


def _began(answer: CommittedOffset) -> float:
    return answer.began
