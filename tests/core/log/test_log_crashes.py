"""Power cuts and kills at every change of the disk, in random histories of a log.

A history is a list of steps. It is run once for every change it makes to the disk, up to that
change; what the disk may hold then is opened again and compared with a model: the batches ever
appended, by offset, which of them were promised to be kept, and what a fold of them says of
producers, transactions and leader epochs.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from logs import LARGE, ORDERS, MakeBatch

from kafkalite.core.config.settings import LogConfig
from kafkalite.core.log.partition_log import PartitionLog
from kafkalite.core.log.store import LogStore
from kafkalite.core.protocol.records import (
    BatchHeader,
    ControlType,
    EndTransactionMarker,
    batches,
    decode,
    encode_end_transaction_marker,
    verify_crc,
)
from kafkalite.testing.clock import at
from kafkalite.testing.storage import MemoryStorage, PowerLoss

Step = tuple[str, int]

ID = UUID(int=7)
NOW_MS = 1_000
CONFIG = LogConfig(
    segment_bytes=500, index_interval_bytes=100, retention_bytes=900, file_delete_delay_ms=0
)
PRODUCERS = 3


@dataclass(frozen=True)
class Batch:
    """One batch that was appended, or was about to be."""

    base_offset: int
    count: int
    value: bytes
    leader_epoch: int
    producer_id: int = -1
    base_sequence: int = -1
    transactional: bool = False
    marker: ControlType | None = None

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.count


@dataclass
class Model:
    """What must be found again."""

    batches: list[Batch] = field(default_factory=list)  # from offset 0 on, also what was deleted
    cut: list[Batch] | None = None  # what there was before a truncation that has not returned
    appending: Batch | None = None
    kept_to: int = 0  # below it all was said to be on the disk
    start_promised: int = 0
    start_tried: int = 0

    @property
    def end(self) -> int:
        return self.batches[-1].next_offset if self.batches else 0

    def state(self) -> Hashable:
        """All that it says: equal for models that say the same."""
        return tuple(
            tuple(each) if isinstance(each, list) else each for each in vars(self).values()
        )

    def upto(self, start: int, end: int) -> list[list[Batch]]:
        """The histories that may lead to a log of [start, end)."""
        grown = [*self.batches, self.appending] if self.appending else self.batches
        possible = [grown] if self.cut is None else [grown, self.cut]
        fitting = [[b for b in each if b.next_offset <= end] for each in possible]
        if start == end:  # what was given up was lost; there is nothing that could be wrong
            return fitting
        return [each for each in fitting if (each[-1].next_offset if each else 0) == end]

    def open_transactions(self, at: list[Batch] | None = None) -> dict[int, int]:
        """Producer -> first offset of its open transaction."""
        found: dict[int, int] = {}
        for batch in self.batches if at is None else at:
            if batch.marker is not None:
                found.pop(batch.producer_id, None)
            elif batch.transactional:
                found.setdefault(batch.producer_id, batch.base_offset)
        return found


class History:
    """Carries out steps on a log, and keeps the model in step."""

    def __init__(self, storage: MemoryStorage, make: MakeBatch, model: Model) -> None:
        self.storage, self.make, self.model = storage, make, model
        self.sequences = dict.fromkeys(range(PRODUCERS), 0)
        self.leader_epoch = 0
        self.counter = 0
        self.store = LogStore(storage)
        self.log = self.store.open(ORDERS, ID, CONFIG, at(NOW_MS))

    def run(self, steps: list[Step]) -> None:
        for name, number in steps:
            getattr(self, name)(number)
        self.close(0)

    # -- steps

    def append(self, number: int) -> None:
        self._append(number % 4 + 1)

    def append_idempotent(self, number: int) -> None:
        producer_id = number % PRODUCERS
        if producer_id not in self.model.open_transactions():
            self._append(number % 3 + 1, producer_id)

    def append_in_transaction(self, number: int) -> None:
        self._append(number % 3 + 1, number % PRODUCERS, transactional=True)

    def end_transaction(self, number: int) -> None:
        opened = sorted(self.model.open_transactions())
        if opened:
            kind = ControlType.COMMIT if number % 2 else ControlType.ABORT
            self._end(opened[number % len(opened)], kind)

    def new_epoch(self, number: int) -> None:
        self.leader_epoch += 1

    def roll(self, number: int) -> None:
        self.log.roll(NOW_MS)

    def flush(self, number: int) -> None:
        self.log.flush()
        self.model.kept_to = self.model.end

    def checkpoint(self, number: int) -> None:
        self.store.write_recovery_points()

    def truncate(self, number: int) -> None:
        model, log = self.model, self.log
        lowest = max([log.log_start_offset, *(log.segments[0].base_offset,)]) + 1
        if not lowest <= number < model.end:
            return
        model.cut = model.batches
        model.batches = [batch for batch in model.batches if batch.next_offset <= number]
        model.kept_to = min(model.kept_to, model.end)
        self.store.truncate(log, number)
        model.cut = None
        for producer_id in self.sequences:
            self.sequences[producer_id] = sum(
                batch.count
                for batch in model.batches
                if batch.producer_id == producer_id and batch.marker is None
            )
        self.leader_epoch = max(self.leader_epoch, log.epochs.latest)
        self._commit()

    def give_up(self, number: int) -> None:
        """DeleteRecords, and its checkpoint."""
        stable = min([self.model.end, *self.model.open_transactions().values()])
        if self.log.log_start_offset < number <= stable:
            self.model.start_tried = max(self.model.start_tried, number)
            self.log.increment_log_start_offset(number)
            self.store.write_log_start_offsets()
            self.model.start_promised = max(self.model.start_promised, number)

    def retain(self, number: int) -> None:
        """Whole segments go; not what a transaction still needs."""
        self.log.high_watermark = min(
            [self.model.end, *self.model.open_transactions().values()], default=0
        )
        self.model.start_tried = max(self.model.start_tried, self.model.end)
        self.log.delete_old_segments(at(NOW_MS))
        for remove in self.log.tick(at(NOW_MS)):
            remove()
        self.model.start_tried = max(self.log.log_start_offset, self.model.start_promised)
        self._commit()

    def close(self, number: int) -> None:
        """And open again."""
        self.store.close(NOW_MS)
        self.model.kept_to = self.model.end
        self.store = LogStore(self.storage)
        assert self.store.was_clean_shutdown
        self.log = self.store.open(ORDERS, ID, CONFIG, at(NOW_MS))
        assert self.log.loss is None
        self._commit()

    # -- what they share

    def _append(self, count: int, producer_id: int = -1, *, transactional: bool = False) -> None:
        self.counter += 1
        sequence = self.sequences[producer_id] if producer_id >= 0 else -1
        batch = Batch(
            self.model.end, count, b"%d" % self.counter, self.leader_epoch, producer_id, sequence,
            transactional,
        )  # fmt: skip
        self._write(batch, encoded(self.make, batch))
        if producer_id >= 0:
            self.sequences[producer_id] += count

    def _end(self, producer_id: int, kind: ControlType) -> None:
        batch = Batch(self.model.end, 1, b"", self.leader_epoch, producer_id, -1, True, kind)
        data = encode_end_transaction_marker(
            EndTransactionMarker(kind, 0), producer_id=producer_id, producer_epoch=0,
            timestamp_ms=NOW_MS,
        )  # fmt: skip
        self._write(batch, bytearray(data), from_client=False)

    def _write(self, batch: Batch, data: bytearray, **more: Any) -> None:
        self.model.appending = batch
        appended = self.log.append_as_leader(data, batch.leader_epoch, NOW_MS, **more)
        self.model.appending = None
        assert (appended.base_offset, appended.duplicate) == (batch.base_offset, False)
        self.model.batches = [*self.model.batches, batch]
        self._commit()

    def _commit(self) -> None:
        self.log.high_watermark = self.log.log_end_offset


def encoded(make: MakeBatch, batch: Batch) -> bytearray:
    more: dict[str, Any] = {}
    if batch.producer_id >= 0:
        more = {
            "producer_id": batch.producer_id,
            "producer_epoch": 0,
            "base_sequence": batch.base_sequence,
            "transactional": batch.transactional,
        }
    return make(batch.count, value=batch.value, **more)


# ---- what is found again -----------------------------------------------------------------------


def found(log: PartitionLog) -> list[tuple[BatchHeader, bytes]]:
    """The batches of a log, whose offsets are dense and whose CRCs are right, with a value."""
    every: list[tuple[BatchHeader, bytes]] = []
    offset = log.log_start_offset
    while (records := log.read(offset, LARGE, log.log_end_offset)) is not None:
        data = records.read()
        for position, header in batches(data):
            verify_crc(data, position, header)
            assert header.base_offset <= offset < header.next_offset
            assert every == [] or header.base_offset == offset, "dense"
            columns = decode(data, position)
            value = b"" if header.is_control else columns.values[0] or b""
            every.append((header, value))
            offset = header.next_offset
    assert offset == log.log_end_offset
    return every


def check(model: Model, storage: MemoryStorage, make: MakeBatch, *, killed: bool) -> int:
    """Opens what a crash left and compares it with the model; where it ends."""
    store = LogStore(storage)
    log = store.open(ORDERS, ID, CONFIG, at(NOW_MS))
    end = log.log_end_offset
    log.high_watermark = end
    assert end >= model.kept_to, "what was flushed is kept"
    assert model.start_promised <= log.log_start_offset <= max(model.start_tried, 0)
    if killed and model.cut is None:
        assert end >= model.end, "a kill takes nothing that was acknowledged"
    every = found(log)
    times = {segment.max_timestamp for segment in log.segments if segment.size_bytes}
    assert times <= {1_000}, "as of every batch; retention goes by it"
    histories = [each for each in model.upto(log.log_start_offset, end) if agrees(each, every)]
    assert histories, f"{[(h.base_offset, v) for h, v in every]} is no prefix of what was appended"
    check_fold(histories[0], log, every, model)
    check_it_goes_on(log, store, storage, make, histories[0])
    return end


def agrees(history: list[Batch], every: list[tuple[BatchHeader, bytes]]) -> bool:
    tail = history[len(history) - len(every) :] if every else []
    return len(tail) == len(every) and all(
        (batch.base_offset, batch.count, batch.value, batch.producer_id, batch.leader_epoch)
        == (
            header.base_offset,
            header.next_offset - header.base_offset,
            value,
            header.producer_id,
            header.partition_leader_epoch,
        )
        for batch, (header, value) in zip(tail, every, strict=True)
    )


def check_fold(
    history: list[Batch],
    log: PartitionLog,
    every: list[tuple[BatchHeader, bytes]],
    model: Model,
) -> None:
    """Producers, transactions and epochs are what a fold of the batches says."""
    start = log.log_start_offset
    last: dict[int, Batch] = {b.producer_id: b for b in history if b.marker is None}
    for producer_id in range(PRODUCERS):
        entry, batch = log.producers.entries.get(producer_id), last.get(producer_id)
        if batch is not None and batch.base_offset >= start:
            assert entry is not None, f"producer {producer_id} is forgotten"
        if entry is not None and entry.batches:
            assert batch is not None, f"producer {producer_id} never wrote what is left"
            last_offset = batch.next_offset - 1
            assert (entry.last_sequence, entry.batches[-1].last_offset) == (
                batch.base_sequence + batch.count - 1,
                last_offset,
            )
    opened = model.open_transactions(history)
    stable = min([*opened.values(), log.log_end_offset])
    assert log.last_stable_offset == max(stable, start)
    told = {(a.producer_id, a.last_offset) for a in log.aborted_transactions(start, LARGE)}
    must, may = aborted(history, start)
    assert must <= told <= may
    for header, _ in every:
        assert log.epochs.epoch_of(max(header.base_offset, start)) == header.partition_leader_epoch


def aborted(history: list[Batch], start: int) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Producer and last offset of the aborted transactions with records at `start` or later, which
    readers must be told of, and of those that at least end there, which they may be."""
    must, may, records = set(), set(), dict[int, int]()
    for batch in history:
        if batch.marker is None and batch.transactional:
            records[batch.producer_id] = batch.next_offset - 1
        elif batch.marker is ControlType.ABORT and batch.base_offset >= start:
            one = (batch.producer_id, batch.base_offset)
            may.add(one)
            if records[batch.producer_id] >= start:
                must.add(one)
    return must, may


def check_it_goes_on(
    log: PartitionLog,
    store: LogStore,
    storage: MemoryStorage,
    make: MakeBatch,
    history: list[Batch],
) -> None:
    """What is sent again is stored once; what is new is appended; a clean restart finds both."""
    last = {b.producer_id: b for b in history if b.producer_id >= 0 and b.marker is None}
    epoch = max(log.epochs.latest, 0)
    for batch in last.values():
        if batch.base_offset >= log.log_start_offset:
            again = log.append_as_leader(encoded(make, batch), epoch, NOW_MS)
            assert again.duplicate
            assert again.base_offset == batch.base_offset
    end = log.log_end_offset
    log.append_as_leader(make(2, value=b"new"), epoch, NOW_MS)
    store.close(NOW_MS)
    restarted = LogStore(storage)
    assert restarted.was_clean_shutdown
    log = restarted.open(ORDERS, ID, CONFIG, at(NOW_MS))
    assert (log.log_end_offset, log.loss) == (end + 2, None)
    assert found(log)[-1][1] == b"new"


# ---- the property ------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["append", "append_idempotent", "append_in_transaction", "end_transaction"] * 3
            + ["new_epoch", "roll", "flush", "checkpoint", "truncate", "give_up", "retain", "close"]
        ),
        st.integers(0, 40),
    ),
    min_size=4,
    max_size=24,
)


CHECKED: set[Hashable] = set()  # what was found right, of all histories: many begin the same


def crash_everywhere(steps: list[Step], make: MakeBatch, survivors: int) -> int:
    """How many changes the history made to the disk, and was crashed at.

    Crashes often leave the same disk for the same model: it is checked once.
    """
    change = 0
    while True:
        change += 1
        memory = MemoryStorage()
        memory.crash_after(change, share=(change % 5) / 4)
        model = Model()
        try:
            History(memory, make, model).run(steps)
        except PowerLoss:
            pass
        else:
            return change
        for seed in range(survivors):
            killed = seed == 0
            survivor = memory.after_kill() if killed else memory.after_crash(Random(seed))
            case: Hashable = make, killed, model.state(), survivor.contents()
            if case not in CHECKED:
                check(model, survivor, make, killed=killed)
                CHECKED.add(case)


@pytest.mark.slow
def test_a_crash_at_every_change_of_a_long_history(batch: MakeBatch) -> None:
    steps: list[Step] = []
    for number in range(5):
        steps += [
            ("append_idempotent", number), ("append_in_transaction", number + 1), ("append", 3),
            ("roll", 0), ("append_in_transaction", number + 1), ("flush", 0),
            ("end_transaction", number), ("new_epoch", 0), ("checkpoint", 0),
            ("append_idempotent", number + 1), ("truncate", 15 * number), ("retain", 0),
            ("give_up", 9 * number), ("append", 2),
        ]  # fmt: skip
        if number == 2:
            steps.append(("close", 0))
    assert crash_everywhere(steps, batch, 3) > 100


@pytest.mark.slow
@pytest.mark.timeout(600)
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes minutes
)
@example(steps=[("append_in_transaction", 1), ("roll", 0), ("flush", 0), ("end_transaction", 0),
                ("checkpoint", 0), ("append", 1)])  # fmt: skip
@example(
    steps=[("append_in_transaction", 0), ("end_transaction", 0), ("append", 0), ("append", 0),
           ("append", 0), ("append", 0), ("append_in_transaction", 0), ("end_transaction", 0),
           ("close", 0), ("truncate", 1)]
)  # fmt: skip
@given(steps=STEPS)
def test_a_crash_at_every_change_of_any_history(batch: MakeBatch, steps: list[Step]) -> None:
    crash_everywhere(steps, batch, 4)
