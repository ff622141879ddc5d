"""Processors: the user's objects, called with one record after the other.                 [P]

    records ──> process(record) ──> forward ──> one batch for what a batch led to
    timers  ──> f(time)         ──> forward ──> one batch for each call

A processor forwards in batches, because its stores are its own: nobody below sees whether a record
comes before or after its next call. Where processors share a store, the runtime sends every record
all the way before the next (`runtime.goes_one_by_one`), and so are forwards.

Facts  A record on which a processor fails under `skip` leaves what it changed and forwarded before.
       Values that are forwarded are the user's own: dicts, lists and sets are copied, but for the
       value of the record at hand.
Source Kafka Streams' ProcessorContextImpl, KStreamFlatMap for the order of several forwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from kafkalite.core.columns import take
from kafkalite.errors import ProcessingError, TopologyError
from kafkalite.streams import plan as p
from kafkalite.streams.blame import line_of
from kafkalite.streams.durations import Duration, positive
from kafkalite.streams.local.batch import MADE, Batch, Made, Origin, Push, Taken
from kafkalite.streams.local.calling import check_timestamp, records
from kafkalite.streams.local.drops import Reason
from kafkalite.streams.local.failures import DROPPED, reason
from kafkalite.streams.local.operators.changed import with_values
from kafkalite.streams.local.runtime import Needs, Runtime, compile_node, node_needs, nowhere
from kafkalite.streams.local.sharing import copied, copies
from kafkalite.streams.local.state.ordered import RESERVED_KEY, OrderedStore
from kafkalite.streams.local.state.user_stores import (
    Keys,
    KeyValues,
    KeyValueView,
    Windows,
)
from kafkalite.streams.local.timers import SET_LATER, Timer, Timers
from kafkalite.streams.local.watermarks import NEVER
from kafkalite.streams.processors import Clock, StoreSpec
from kafkalite.streams.record import Record

CLOCKS: Final = ("stream_time", "wall_clock")


@node_needs.register
def _(node: p.Process, below: Needs, runtime: Runtime) -> tuple[Needs, ...]:
    keeps_key = isinstance(node, p.ProcessValues)
    needs = Needs(key=True, raw_key=keeps_key and below.raw_key, value=True)
    return needs, *(Needs() for _ in node.tables)


@compile_node.register
def _(node: p.Process, runtime: Runtime) -> tuple[Push, ...]:
    processors = runtime.processors
    if not isinstance(processors, Processors):
        runtime.processors = processors = Processors(runtime)
    return processors.add(node).run, *(nowhere for _ in node.tables)


class Processors:
    """All processors of one task, their stores and timers."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.timers = Timers(is_timed=runtime.is_timed)
        self._operators: list[ProcessorOperator] = []  # those above first
        self._rows: dict[str, tuple[OrderedStore, Keys]] = {}
        self._windows: dict[str, Windows] = {}

    def run(self, batch: Batch, push: Push) -> None:
        """Pushes the records of a run; calls the timers that they make due behind them."""
        self.timers.run(batch, push)

    def advance(self, stream_time: int) -> None:
        """All inputs have come so far in stream time."""
        self.timers.advance(stream_time)

    def tick(self, now_ms: int) -> None:
        """Looks at the wall clock."""
        self.timers.tick(now_ms)

    def add(self, node: p.Process) -> ProcessorOperator:
        """The operator of a node. Nodes are compiled those below first."""
        for spec in node.stores:
            if spec.name not in self._rows:
                self._open(node, spec)
        operator = ProcessorOperator(node, self._runtime, self)
        self._operators.insert(0, operator)
        return operator

    def _open(self, node: p.Process, spec: StoreSpec) -> None:
        runtime = self._runtime
        store = next(s for s in runtime.sub_topology.stores if s.spec == spec)
        rows = OrderedStore(
            store.name,
            store.changelog_topic,
            runtime.codec(store.value, is_key=False),
            runtime.place.backend(store.name),
            lambda _: self._view(spec),
            RESERVED_KEY,
        )
        runtime.stores[store.name] = rows
        keys = Keys(rows, runtime.codec(store.key, is_key=True))
        self._rows[store.name] = rows, keys

        def dropped() -> None:
            runtime.metrics[DROPPED] += 1
            runtime.drops.add(Reason.PAST_RETENTION, node.name)

        if spec.retention_ms is not None:
            self._windows[store.name] = Windows(rows, keys, spec.retention_ms, dropped)

    def _view(self, spec: StoreSpec) -> Any:
        found = self._windows.get(spec.name)
        return KeyValueView(*self._rows[spec.name]) if found is None else found.view()

    def store(self, spec: StoreSpec, stamp: Callable[[], int]) -> Any:
        """A store for one processor."""
        found = self._windows.get(spec.name)
        return KeyValues(*self._rows[spec.name], stamp) if found is None else found

    @property
    def keeper(self) -> OrderedStore | None:
        """The store that keeps what `dump` gives; None: there is no store."""
        stores = self._runtime.sub_topology.stores
        return next((self._rows[store.name][0] for store in stores if store.spec), None)

    def begin(self, now_ms: int, stream_time: int, dumped: Sequence[Any]) -> None:
        """Makes the processors, once the state is what the last commit left: `stream_time` and
        what `dump` gave then."""
        self.timers.now_ms = now_ms
        self.timers.stream_time = stream_time
        timers, newest = dumped or ((), {})
        for name, windows in self._windows.items():
            windows.advance(newest.get(name, NEVER))
        for operator in self._operators:
            operator.begin()
        self.timers.load(timers, self._operators)

    def dump(self) -> list[Any]:
        """What a restart needs besides rows and the stream time."""
        newest = {name: windows.newest for name, windows in self._windows.items()}
        return [self.timers.dump(), newest]

    @property
    def stream_time(self) -> int:
        """How far the task has come."""
        return self.timers.stream_time

    def close(self) -> None:
        """Ends the processors; raises the first of their errors when all have ended."""
        errors = []
        for operator in self._operators:
            try:
                operator.close()
            except ProcessingError as error:
                errors.append(error)
        if errors:
            raise errors[0]


class ProcessorOperator:
    """The operator of one node."""

    def __init__(self, node: p.Process, runtime: Runtime, processors: Processors) -> None:
        self.name = node.name
        self.batch: Batch | None = None  # whose records the processor is called with
        self._origin: Origin = MADE  # of what is forwarded
        self._node = node
        self._runtime = runtime
        self._timers = processors.timers
        self._failures = runtime.failures
        self._forward = runtime.forward_several(node)
        self._needs_raw_key = isinstance(node, p.ProcessValues) and runtime.needs(node).raw_key
        self._gets_copies = runtime.gets_shared(node)
        self._processor: Any = None
        self._context = Context(node, runtime, processors, self)

    def begin(self) -> None:
        """Makes the processor."""
        try:
            self._processor = self._node.make()
            if not callable(getattr(self._processor, "process", None)):
                made = type(self._processor).__name__
                raise TypeError(f"expected a processor with process(record), got {made}")
            if (init := getattr(self._processor, "init", None)) is not None:
                init(self._context)
        except Exception as error:
            raise self._error("init", error) from error
        self._context.is_in_init = False
        self.push_made()

    def close(self) -> None:
        """Ends the processor, if there is one."""
        processor, self._processor = self._processor, None
        self._context.is_closed = True
        try:
            if (close := getattr(processor, "close", None)) is not None:
                close()
        except Exception as error:
            raise self._error("close", error) from error

    def _error(self, method: str, error: Exception) -> ProcessingError:
        line = line_of(error) or self._node.made_at
        return ProcessingError(f"{self.name!r}: {method}: {reason(error, self._node)} ({line})")

    def method(self, name: str) -> Callable[[int], object] | None:
        """A method of the processor's; None if there is none of that name."""
        found = getattr(self._processor, name, None)
        return found if callable(found) else None

    def run(self, batch: Batch) -> None:
        """Calls the processor with each record, then sends on what it forwarded."""
        context, timers, process = self._context, self._timers, self._processor.process
        if self._gets_copies and batch.values is not None:
            batch = with_values(batch, copies(batch.values))
        given = records(batch)
        self.batch, self._origin, context.given = batch, batch.origin, given
        timers.was_set = False
        for at, record in enumerate(given):
            context.at = at
            try:
                process(record)
            except Exception as error:
                self._fail(error, batch, at)
            if timers.was_set and timers.is_among_records:
                self.push_made()
                until = at + 1 if at + 1 < len(given) else None
                timers.call_own(self, batch.origin, at, until)
        self.push_made()
        self.batch, self._origin, context.given = None, MADE, None
        context.raise_error_below()

    def _fail(self, error: Exception, batch: Batch, at: int) -> None:
        self._context.raise_error_below()
        self._failures.at(self._node, error, batch, at)

    def call(self, timer: Timer, time: int) -> None:
        """Calls a timer's function, and sends on what it forwards."""
        context = self._context
        before = self.batch, self._origin, context.given
        is_in_run = self.batch is not None
        origin = Made(self.batch.origin, context.at) if self.batch is not None else MADE
        self.batch, self._origin, context.given, context.time = None, origin, None, time
        try:
            timer.function(time)
        except Exception as error:
            context.raise_error_below()
            self._failures.handle(self._node, error, None, f"a timer of {timer.clock} at {time}")
        self.push_made()
        self.batch, self._origin, context.given = before
        context.raise_error_below()
        if not is_in_run:
            self._runtime.settle()

    def push_made(self) -> None:
        """Sends on what was forwarded."""
        context, batch = self._context, self.batch
        made, values, indexes = context.take_made()
        if not made:
            return
        headers = [record.headers for record in made]
        self._forward(
            Batch(
                [record.timestamp for record in made],
                self._origin if batch is None else Taken(self._origin, indexes),
                [record.key for record in made],
                self._raw_keys(made, indexes) if self._needs_raw_key else None,
                values,
                headers=headers if any(headers) else None,
                times=None if batch is None or batch.times is None else take(batch.times, indexes),
            )
        )

    def _raw_keys(self, made: Sequence[Record], indexes: Sequence[int]) -> Sequence[bytes | None]:
        """The bytes of keys: those that came, or of a timer's records by their serde."""
        if self.batch is not None:
            assert self.batch.raw_keys is not None
            return take(self.batch.raw_keys, indexes)
        serde = self._runtime.schema(self._node).key
        assert serde is not None
        codec = self._runtime.codec(serde, is_key=True)
        return codec.serialize(self.name, [record.key for record in made])


class Context:
    """The processor's side of its operator."""

    def __init__(
        self,
        node: p.Process,
        runtime: Runtime,
        processors: Processors,
        operator: ProcessorOperator,
    ) -> None:
        self.given: Sequence[Record] | None = None  # the records at hand, while there are
        self.at = 0  # the one that the processor is called with
        self.time = 0  # of the timer that is called, or was last
        self.is_in_init = True
        self.is_closed = False
        self._made: list[Record] = []
        self._values: list[Any] = []  # of them
        self._indexes: list[int] = []  # of the records that led to them
        self._error_below: Exception | None = None
        self._node = node
        self._keeps_key = isinstance(node, p.ProcessValues)
        self._runtime = runtime
        self._processors = processors
        self._timers = processors.timers
        self._operator = operator
        self._set_in_init = 0  # timers
        self._tables = {table.name: table for table in node.tables}
        self._stores = {spec.name: processors.store(spec, self._stamp) for spec in node.stores}

    # For the user

    @property
    def stream_time(self) -> int:
        """The newest timestamp that the task has read; -1 before the first record."""
        if (batch := self._operator.batch) is None:
            return self._timers.stream_time
        return self._timers.as_of(batch.origin, self.at)

    @property
    def wall_clock(self) -> int:
        """Now, in epoch ms. It stands still while a record is processed."""
        return self._runtime.now_ms

    @property
    def partition(self) -> int:
        """The partition of the task."""
        return self._runtime.partition

    def forward(self, record: Record) -> None:
        """Sends a record on, with its key, value, timestamp and headers."""
        if type(record) is not Record:
            raise TypeError(f"forward: expected a Record, got {type(record).__name__}")
        check_timestamp(record.timestamp)
        value = record.value
        if (given := self.given) is None:
            value = copied(value)
        else:
            current = given[self.at]
            if value is not current.value:
                value = copied(value)
            if self._keeps_key and record.key is not current.key and record.key != current.key:
                raise ValueError(
                    f"process_values keeps the key: a record of {current.key!r} cannot be "
                    f"forwarded under {record.key!r}; process() can"
                )
        self._made.append(record)
        self._values.append(value)
        self._indexes.append(self.at)
        if self._runtime.goes_one_by_one or self.is_closed:
            self._send_now()

    def _send_now(self) -> None:
        if self.is_closed:
            self.take_made()
            raise RuntimeError("nothing can be forwarded when the task has ended")
        try:
            self._operator.push_made()
        except Exception as error:
            self._error_below = error
            raise

    def store(self, store: StoreSpec | str) -> Any:
        """A store that is connected to the processor; a table of its own or a global one to read,
        by its name."""
        name = store.name if isinstance(store, StoreSpec) else store
        if (table := self._tables.get(name)) is not None:
            owned = self._runtime.store_of(table)
            assert owned is not None, f"{name!r}: a table that is looked into has a store"
            return self._runtime.stores[owned.name].view()
        if name not in self._stores and name in self._runtime.global_stores:
            return self._runtime.global_stores[name].view()
        if name not in self._stores:
            there = ", ".join(map(repr, (*self._stores, *self._tables))) or "none"
            raise TopologyError(
                f"store {name!r} is not connected to {self._node.name!r}: stores= has {there}"
            )
        return self._stores[name]

    def schedule(
        self, interval: Duration, clock: Clock, function: Callable[[int], object]
    ) -> Timer:
        """Calls `function(timestamp)` every `interval` of stream time or of the wall clock."""
        if clock not in CLOCKS:
            raise TopologyError(f"schedule: the clock is one of {CLOCKS}, got {clock!r}")
        if not callable(function):
            raise TopologyError(
                f"schedule: expected a function of a timestamp, got {type(function).__name__}"
            )
        number = self._set_in_init if self.is_in_init else SET_LATER
        self._set_in_init += self.is_in_init
        interval_ms = positive(interval, "schedule: interval")
        return self._timers.schedule(self._operator, clock, interval_ms, function, number)

    # For the operator

    def take_made(self) -> tuple[list[Record], list[Any], list[int]]:
        """What was forwarded since the last call: records, their values, what led to them."""
        made, values, indexes = self._made, self._values, self._indexes
        if made:
            self._made, self._values, self._indexes = [], [], []
        return made, values, indexes

    def raise_error_below(self) -> None:
        """An error of an operator below is its own, even if the processor catches it."""
        if self._error_below is not None:
            raise self._error_below

    def _stamp(self) -> int:
        """The time of a change of a store."""
        if self.given is not None:
            return self.given[self.at].timestamp
        return max(0, self.time, self._timers.stream_time)
