"""A task's inputs: fetched batches in, runs of records in order of time out.              [P]

    fetched   | batch | batch | batch |       bytes, as they were enqueued, watermarks among them
    head      decoded: the columns that the operators need, no others
    run       the head's records up to where another input has an earlier one

Owns   what is buffered, the offset up to which each topic was processed, and the times of the
       tasks that wrote it, as of there.
Fails  through the error policy of the source when a key, value or timestamp cannot be read; the
       records before it are processed first.
Source Kafka Streams' PartitionGroup, RecordQueue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from kafkalite.core.columns import greatest, greatest_so_far, least
from kafkalite.core.protocol.record_codec import Int64s
from kafkalite.core.types import Columns
from kafkalite.errors import ProcessingError, SerdeError
from kafkalite.serde.serde import Codec
from kafkalite.streams import plan as p
from kafkalite.streams.durations import spell
from kafkalite.streams.expressions.tree import TIMESTAMP, VALUE
from kafkalite.streams.functions import ExpressionFunction
from kafkalite.streams.local.arrows import HAS_ARROW, on_arrow
from kafkalite.streams.local.batch import Batch, Fetched
from kafkalite.streams.local.calling import (
    TIMESTAMP_MAX,
    applied,
    check_timestamp,
    function_needs,
)
from kafkalite.streams.local.failures import attempt, convert
from kafkalite.streams.local.partials import PartialRows, RowFormat, is_row, runs
from kafkalite.streams.local.runtime import Needs, Runtime
from kafkalite.streams.local.watermarks import Clock, Placed, without_markers

Failed = list[tuple[int, Exception]]


class Reader:
    """Decodes what one source node fetched."""

    def __init__(self, node: p.Source, runtime: Runtime) -> None:
        self.node = node
        self.runtime = runtime
        self.partition = runtime.partition
        self.failures = runtime.failures
        self.needs = runtime.asked(node)
        read = self.needs
        if node.timestamp is not None:
            read |= function_needs(node.timestamp)
            read |= Needs(value=True, fields=read.fields if read.value else frozenset())
        self.reads_value = read.value
        self.key_codec = runtime.codec(node.key, is_key=True)
        self.value_codec = runtime.codec(
            node.value, is_key=False, fields=read.fields, forms=HAS_ARROW, arrow=read.arrow
        )
        self.max_future_ms = _max_future(node, runtime)
        self.by_arrow = on_arrow(node.timestamp)
        is_shared = not runtime.shared_topics.isdisjoint(node.topics)
        self.rows = RowFormat(node.folds) if node.folds is not None and is_shared else None

    def read(
        self, topic: str, columns: Columns, clock: Clock | None, markers: Sequence[Placed]
    ) -> tuple[Batch, Sequence[int], Failed]:
        """The columns that are needed, and the records that could not be read, by index.

        Between them the timestamps of all records of `columns`.
        """
        needs = self.needs
        failed: Failed = []
        keys = self._decode(self.key_codec, topic, columns.keys, failed) if needs.key else None
        values: Sequence[Any] | None = None
        rows: PartialRows | None = None
        if self.rows is not None and is_row(columns.values[0]):
            values = rows = self._decode_rows(topic, columns)
        elif self.reads_value:
            values = self._decode(self.value_codec, topic, columns.values, failed)
        timestamps = columns.timestamps
        if self.node.timestamp is not None:
            assert values is not None
            timestamps = self._extract(values, columns, failed)
        timestamps = self._in_range(timestamps, failed)
        batch = Batch(
            timestamps,
            Fetched(topic, self.partition, columns),
            keys,
            columns.keys if needs.raw_key else None,
            values if needs.value else rows,
            columns.values if needs.raw_value else None,
            headers=columns.headers,
            times=None if clock is None else clock.judged(timestamps, markers),
        )
        if failed:
            bad = {index for index, _ in failed}
            batch = batch.where([index not in bad for index in range(len(columns))])
            failed = sorted(dict(reversed(failed)).items())  # the first failure of each record
        return batch, timestamps, failed

    def _in_range(self, timestamps: Sequence[int], failed: Failed) -> Sequence[int]:
        """The timestamps; 0 in the place of those that no record may have, which have failed."""
        future_ms, limit = self.max_future_ms, TIMESTAMP_MAX
        if future_ms is not None:
            limit = self.runtime.now_ms + future_ms
        if least(timestamps) >= 0 and greatest(timestamps) <= limit:
            return timestamps
        for index, timestamp in enumerate(timestamps):
            if timestamp < 0:
                failed.append((index, ValueError(f"timestamp {timestamp} is negative")))
            elif timestamp > limit:
                assert future_ms is not None
                failed.append((index, TooFarAhead(timestamp, future_ms)))
        return [timestamp if 0 <= timestamp <= limit else 0 for timestamp in timestamps]

    def _decode(
        self, codec: Codec, topic: str, column: Sequence[Any], failed: Failed
    ) -> Sequence[Any]:
        note: Callable[[int, Exception], None] = lambda *failure: failed.append(failure)  # noqa: E731
        return convert(codec.deserialize, topic, column, note)[0]

    def _decode_rows(self, topic: str, columns: Columns) -> PartialRows:
        """What others have folded. A row that cannot be read stands for many records."""
        assert self.rows is not None
        try:
            return self.rows.decode(columns.values)
        except SerdeError as error:
            place = Fetched(topic, self.partition, columns).places([error.index or 0])[0]
            raise ProcessingError(f"{self.node.name!r}: {place}: {error}") from error

    def _extract(self, values: Sequence[Any], columns: Columns, failed: Failed) -> Sequence[int]:
        """Timestamps by the user's function; 0 where there is none to be had."""
        function = self.node.timestamp
        assert function is not None
        found = None if failed else self._extract_by_arrow(values, columns)
        if found is not None:
            return found
        unreadable = {index for index, _ in failed}
        there = [index for index in range(len(values)) if index not in unreadable]
        given = [values]
        if isinstance(function, ExpressionFunction):
            by_input = {VALUE: values, TIMESTAMP: columns.timestamps}
            given = [by_input[each] for each in function.inputs]
        if unreadable:
            given = [[column[index] for index in there] for column in given]
        results = attempt(
            applied(function), given, lambda at, error: failed.append((there[at], error))
        )
        timestamps = [0] * len(values)
        failed_now = {index for index, _ in failed}
        for index, timestamp in zip(there, results, strict=True):
            if index in failed_now:
                continue
            try:
                check_timestamp(timestamp)
                timestamps[index] = timestamp
            except (TypeError, ValueError) as error:
                failed.append((index, error))
        return timestamps

    def _extract_by_arrow(self, values: Sequence[Any], columns: Columns) -> Sequence[int] | None:
        """Timestamps that Arrow computes; None where it gives another, or none for a record."""
        if self.by_arrow is None:
            return None
        fetched = Fetched("", self.partition, columns)
        array = self.by_arrow.array(Batch(columns.timestamps, fetched, values=values))
        if array is None or str(array.type) != "int64" or array.null_count:
            return None
        found: list[int] = array.to_pylist()
        return found if min(found) >= 0 else None


def _max_future(node: p.Source, runtime: Runtime) -> int | None:
    """How far records of `node` may be ahead; internal topics hold what sources let through."""
    sub = runtime.sub_topology
    application, internal = sub.plan.max_future_ms, {t.name for t in sub.repartition_sources}
    if application is None or not internal.isdisjoint(node.topics):
        return None
    return application if node.max_future_ms is None else node.max_future_ms


class TooFarAhead(ValueError):
    """A record from the future: its stream time would close every window before it."""

    def __init__(self, timestamp: int, max_future_ms: int) -> None:
        super().__init__(
            f"timestamp {timestamp} is more than {spell(max_future_ms)} ahead of the wall clock "
            "(max_future=)"
        )


class Input:
    """One topic's partition on its way into a task.

    `clock` knows the tasks that write the topic, None where nobody asks. Where it `is_timed`, each
    record is judged by the time of its own task. `is_idle`: others say that it has had nothing for
    long; of a repartition topic (`is_internal`) its writers say so themselves.
    """

    def __init__(
        self,
        topic: str,
        order: tuple[int, str],
        reader: Reader,
        clock: Clock | None = None,
        *,
        is_internal: bool = False,
        is_timed: bool = False,
    ) -> None:
        self.topic = topic
        self.order = order  # among inputs whose heads have one timestamp
        self.reader = reader
        self.clock = clock
        self.is_internal = is_internal
        self.is_timed = is_timed
        self.is_idle = False
        self.next_offset: int | None = None  # None until something was processed
        self._fetched: deque[Columns] = deque()
        self._columns: Columns | None = None  # of the head
        self._head: Batch | None = None
        self._position = 0  # of the next record in the head
        self._done = 0  # how many of the head's columns are behind that
        self._failed: Failed = []  # records of the head that are not in the batch
        self._markers: deque[Placed] = deque()  # of the head, not passed yet
        self._timestamps: Sequence[int] = ()  # of the head's columns
        self._end_offset = 0  # behind the head and its markers

    def put(self, columns: Columns) -> None:
        """Buffers a fetched batch; it has offsets."""
        assert columns.offsets is not None, f"{self.topic}: a batch without offsets"
        if len(columns):
            self._fetched += [columns] if self.reader.rows is None else runs(columns)

    @property
    def buffered(self) -> int:
        """Records that are not processed yet."""
        head = 0 if self._columns is None else len(self._columns) - self._done
        return head + sum(map(len, self._fetched))

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing waits, and nothing is to be expected soon."""
        if self.buffered:
            return False
        return self.clock is not None and self.clock.is_idle if self.is_internal else self.is_idle

    def head_timestamp(self) -> int | None:
        """The timestamp of the next record; None when there is none."""
        while self._head is None:
            if not self._fetched:
                return None
            self._open(self._fetched.popleft())
        return self._head.timestamps[self._position]

    def run(self, before: int | None, records_max: int) -> int:
        """Processes records up to the first with timestamp `before` or later; how many."""
        head, first = self._head, self._position
        assert head is not None
        end = min(len(head), first + records_max)
        if before is not None:
            end = first_not_before(head.timestamps, before, first, end)
        self._run_to(end, self.reader.runtime.run)
        return end - first

    def upcoming(self, records_max: int) -> Sequence[int]:
        """The newest timestamp so far at each of the next records, as far as they are decoded."""
        head, first = self._head, self._position
        assert head is not None
        some = head.timestamps[first : min(len(head), first + records_max)]
        return greatest_so_far(some, some[0])

    def run_ahead(self, ranks: Sequence[int]) -> None:
        """Sends as many records as there are ranks up to where inputs meet: see Runtime."""
        runtime = self.reader.runtime
        if ranks:
            end = self._position + len(ranks)
            self._run_to(end, lambda node, batch: runtime.run_ahead(node, batch, ranks))

    def _run_to(self, end: int, run: Callable[[p.Node, Batch], None]) -> None:
        head, first = self._head, self._position
        assert head is not None
        self._position = end
        is_done = end == len(head)
        batch = head if is_done and not first else head.slice(first, end)
        run(self.reader.node, batch)
        if is_done:
            self._finish()
        else:
            self._pass(head, end)

    def _open(self, columns: Columns) -> None:
        assert columns.offsets is not None
        self._end_offset = columns.offsets[-1] + 1
        if self.clock is not None:
            columns, markers = without_markers(columns)
            self._markers.extend(markers)
        self._columns, self._position, self._done, self._timestamps = columns, 0, 0, ()
        if len(columns):
            clock = self.clock if self.is_timed else None
            batch, self._timestamps, self._failed = self.reader.read(
                self.topic, columns, clock, self._markers
            )
            self._head = batch if len(batch) else None
        if self._head is None:
            self._finish()

    def _finish(self) -> None:
        """The head is processed to its end."""
        assert self._columns is not None
        if self._failed:
            self._report(len(self._columns))
        if self.clock is not None:
            self._let_time_pass(len(self._columns))
        self.next_offset = self._end_offset
        self._head = self._columns = None

    def _pass(self, head: Batch, position: int) -> None:
        """The head is processed up to `position`."""
        (place,) = head.origin.places([position])
        assert place is not None
        self._report(place.at)
        self._let_time_pass(place.at)
        self._done, self.next_offset = place.at, place.offset

    def _let_time_pass(self, end: int) -> None:
        """The clock goes past the head's records before index `end`, and the markers there."""
        clock, timestamps, first = self.clock, self._timestamps, self._done
        if clock is None:
            return
        while self._markers and self._markers[0][0] <= end:
            start, marker = self._markers.popleft()
            clock.pass_records(timestamps[first:start])
            clock.meet(marker)
            first = start
        clock.pass_records(timestamps[first:end])

    def _report(self, end: int) -> None:
        """Hands the failures of records before index `end` to the error policy."""
        assert self._columns is not None
        fetched = Fetched(self.topic, self.reader.partition, self._columns)
        while self._failed and self._failed[0][0] < end:
            index, error = self._failed.pop(0)
            (place,) = fetched.places([index])
            self.reader.failures.handle(self.reader.node, error, place)


def first_not_before(timestamps: Sequence[int], before: int, first: int, end: int) -> int:
    """The first index in [first, end) whose timestamp is `before` or later; else `end`.

    Looks about twice as far as the answer and no further: where two inputs take turns, runs are
    short and heads are long.
    """
    if isinstance(timestamps, Int64s):
        return timestamps.first_over(before - 1, first, end)
    step = 1
    while first < end:
        part = timestamps[first : min(end, first + step)]
        if max(part) >= before:
            return first + next(i for i, timestamp in enumerate(part) if timestamp >= before)
        first, step = first + len(part), step * 2
    return end
