"""A log with everything that compaction has to respect, and a model that knows what it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from kafkalite.compaction import cleaner, cleaning_pure, loops, passes, rewrite
from kafkalite.compaction.cleaner import CleanerSettings, Cleaning, DirtyRange
from kafkalite.core.config.settings import LogConfig
from kafkalite.core.log.partition_log import PartitionLog
from kafkalite.core.log.port import Storage
from kafkalite.core.protocol.compression import Compression
from kafkalite.core.protocol.records import (
    BatchHeader,
    ControlType,
    EndTransactionMarker,
    batches,
    decode,
    encode,
    encode_end_transaction_marker,
    verify_crc,
)
from kafkalite.core.types import Columns, Headers, TopicPartition
from kafkalite.testing.clock import at
from kafkalite.testing.storage import MemoryStorage

WHERE = TopicPartition("state", 0)
SECRET = bytes(range(16))
FOREVER = 1 << 60


class Written(NamedTuple):
    """A record as it was appended; `transaction` is the marker's offset, None outside of one."""

    offset: int
    key: bytes
    value: bytes | None
    timestamp: int
    headers: Headers


def drive(cleaning: Cleaning) -> None:
    """Does what a cleaning asks for, and tells it what failed."""
    steps = cleaning.steps()
    work = next(steps, None)
    while work is not None:
        try:
            work()
        except BaseException as error:
            work = steps.throw(error)
        else:
            work = next(steps, None)


@dataclass
class Model:
    """All that was ever appended to one compacted log, and what became of it."""

    storage: Storage = field(default_factory=MemoryStorage)
    settings: dict[str, Any] = field(default_factory=dict)
    now_ms: int = 1_000
    clean_until: int = 0
    written: dict[int, Written] = field(default_factory=dict)
    owner: dict[int, tuple[int, int]] = field(default_factory=dict)  # offset -> its transaction
    ended: dict[tuple[int, int], tuple[ControlType, int]] = field(default_factory=dict)
    met_ms: dict[int, int] = field(default_factory=dict)  # tombstone's offset -> first cleaning
    sequences: dict[int, int] = field(default_factory=dict)
    current: dict[int, tuple[int, int]] = field(default_factory=dict)  # producer -> transaction
    io_buffer_bytes: int = 512

    def __post_init__(self) -> None:
        self.config = LogConfig(
            **{"cleanup_policy": ("compact",), "delete_retention_ms": 100,
               "producer_id_expiration_ms": FOREVER, "index_interval_bytes": 100, **self.settings}
        )  # fmt: skip
        self.storage.make_directory(str(WHERE))
        self.log = self.open(is_new=True, clean=True)

    @classmethod
    def filled(cls, **settings: Any) -> Model:
        """Three segments of three batches of three records, keys a, b, c, and an active one."""
        model = cls(settings=settings)
        for i in range(9):
            model.append([(key, b"%d" % i) for key in (b"a", b"b", b"c")])
            if i % 3 == 2:
                model.roll()
        model.append([(b"a", b"active")])
        return model

    def open(self, *, is_new: bool = False, clean: bool = False, since: int = 0) -> PartitionLog:
        log = PartitionLog.open(
            self.storage, str(WHERE), WHERE, self.config, at(self.now_ms),
            clean_shutdown=clean, is_new=is_new, recovery_point=since,
        )  # fmt: skip
        log.high_watermark = log.log_end_offset
        return log

    def append(
        self,
        rows: list[tuple[bytes, bytes | None]],
        *,
        producer_id: int = -1,
        transactional: bool = False,
        compression: Compression = Compression.NONE,
        headers: Headers = (),
        timestamps: list[int] | None = None,
    ) -> int:
        """One batch; the offset of its first record."""
        times = timestamps or [self.now_ms + i for i in range(len(rows))]
        sequence = self.sequences.get(producer_id, 0) if producer_id >= 0 else -1
        columns = Columns(
            [key for key, _ in rows], [value for _, value in rows], times,
            headers=[headers] * len(rows) if headers else None,
        )  # fmt: skip
        batch = encode(
            columns, compression=compression, producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1, base_sequence=sequence,
            transactional=transactional,
        )  # fmt: skip
        base = self.log.append_as_leader(batch, 0, self.now_ms).base_offset
        if producer_id >= 0:
            self.sequences[producer_id] = sequence + len(rows)
        if transactional:
            self.current.setdefault(producer_id, (producer_id, base))
        for i, (key, value) in enumerate(rows):
            self.written[base + i] = Written(base + i, key, value, times[i], headers)
            if transactional:
                self.owner[base + i] = self.current[producer_id]
        self.log.high_watermark = self.log.log_end_offset
        return base

    def end(self, producer_id: int, kind: ControlType) -> None:
        """The producer's transaction is over; without one there is a marker all the same."""
        marker = encode_end_transaction_marker(
            EndTransactionMarker(kind, 0), producer_id=producer_id, producer_epoch=0,
            timestamp_ms=self.now_ms,
        )  # fmt: skip
        appended = self.log.append_as_leader(marker, 0, self.now_ms, from_client=False)
        transaction = self.current.pop(producer_id, (producer_id, appended.base_offset))
        self.ended[transaction] = kind, appended.base_offset
        self.log.high_watermark = self.log.log_end_offset

    def roll(self) -> None:
        self.log.roll(self.now_ms)

    def dirty(self) -> DirtyRange | None:
        """Whole segments below the last stable offset and the active one, if there are some."""
        stable = min(self.log.last_stable_offset, self.log.segments[-1].base_offset)
        starts = [segment.base_offset for segment in self.log.segments]
        end = max(start for start in starts if start <= stable)
        return DirtyRange(self.clean_until, end) if end > self.clean_until else None

    def cleaning(self, dirty: DirtyRange, buffer_bytes: int = 1 << 20) -> Cleaning:
        settings = CleanerSettings(buffer_bytes, 0.9, self.io_buffer_bytes)
        return Cleaning(self.log, dirty, settings, SECRET, at(self.now_ms))

    def clean(self, buffer_bytes: int = 1 << 20) -> Cleaning | None:
        """One cleaning of all that can be cleaned."""
        dirty = self.dirty()
        if dirty is None:
            return None
        cleaning = self.cleaning(dirty, buffer_bytes)
        starts = [segment.base_offset for segment in self.log.segments]
        drive(cleaning)
        walked_until = min(start for start in starts if start >= cleaning.mapped_until)
        for offset, record in self.written.items():
            if record.value is None and offset < walked_until:
                self.met_ms.setdefault(offset, self.now_ms)
        self.clean_until = cleaning.mapped_until
        return cleaning

    # ---- what is there -------------------------------------------------------------------------

    def batches(self, log: PartitionLog | None = None) -> Iterator[tuple[BatchHeader, Columns]]:
        for segment in (log or self.log).segments:
            data = segment.log.read(0, segment.size_bytes)
            assert len(data) == segment.size_bytes
            for position, header in batches(data):
                verify_crc(data, position, header)
                yield header, decode(data, position)

    def records(self, log: PartitionLog | None = None) -> list[Written]:
        """The users' records that are in the log, committed or not."""
        found = []
        for header, columns in self.batches(log):
            if header.is_control:
                continue
            headers = columns.headers or [()] * len(columns)
            rows = zip(
                columns.offsets or (), columns.keys, columns.values, columns.timestamps, headers,
                strict=True,
            )  # fmt: skip
            found += [Written(*row) for row in rows]
        return found

    def committed(self, log: PartitionLog | None = None) -> list[Written]:
        """What a consumer reads that asks for committed records alone, by what the broker tells."""
        log = log or self.log
        aborted = log.aborted_transactions(0, log.log_end_offset)
        found = []
        for record in self.records(log):
            producer_id = self.owner.get(record.offset, (-1, -1))[0]
            if record.offset < log.last_stable_offset and not any(
                a.producer_id == producer_id and a.first_offset <= record.offset <= a.last_offset
                for a in aborted
            ):
                found.append(record)
        return found

    def is_aborted(self, offset: int) -> bool:
        return self.ended.get(self.owner.get(offset, (0, 0)), (None, 0))[0] is ControlType.ABORT

    def state(self, end_offset: int = FOREVER) -> dict[bytes, Written]:
        """The dictionary that the log stands for: of each key the latest record that counts."""
        latest = {}
        for offset, record in sorted(self.written.items()):
            if offset < end_offset and not self.is_aborted(offset):
                latest[record.key] = record
        return latest


@pytest.fixture(scope="session")
def model() -> type[Model]:
    return Model


def use_twins(patch: pytest.MonkeyPatch) -> None:
    """From here on the pure twins clean."""
    for user in (cleaner, passes, rewrite):
        for name in loops.__all__:
            if name in vars(user):
                patch.setattr(user, name, getattr(cleaning_pure, name))


@pytest.fixture(scope="session")
def twins() -> Callable[[pytest.MonkeyPatch], None]:
    return use_twins


@pytest.fixture(name="loops", params=["native", "pure"])
def chosen_loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The cleaner with its native loops, then with their twins."""
    if request.param == "pure":
        use_twins(monkeypatch)
    elif not loops.NATIVE:
        pytest.skip("built without a compiler, or from other sources")
    return str(request.param)


MakeModel = Callable[..., Model]
