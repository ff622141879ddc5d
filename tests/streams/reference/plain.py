"""The operators of streams and tables as nodes of a machine, each written from its rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kafkalite.core.types import Windowed
from kafkalite.streams import Record
from reference.cogroup import Cogroup
from reference.emit import FinalRows, Held
from reference.emit import Update as HeldUpdate
from reference.machine import Node, Table, Update
from reference.matching import Step, matches
from reference.processors import PlainKeyValues
from reference.tables import PlainRetention
from reference.values import Refused
from reference.windows import Row

Predicate = Callable[[Any], object]


class Each(Node):
    """Any number of records for each: filter, map, flat_map and all that change the key."""

    def __init__(
        self, parent: Node, function: Callable[[Any, Any], Iterable[tuple[Any, Any]]]
    ) -> None:
        super().__init__(parent)
        self.function = function

    def take(self, number: int, update: Update) -> None:
        try:
            made = self.function(update.key, update.value)
        except Refused:
            self.dropped += 1
            return
        for key, value in made:
            self.emit(Update(key, value, update.time))


class Called(Each):
    """The same by calls, whose results come when the record has gone all its other ways."""

    def take(self, number: int, update: Update) -> None:
        assert self.task is not None
        self.task.called.append((super().take, number, update))


class Branch(Node):
    """Each record into the first arm whose predicate is true: ports "0", "1", …"""

    def __init__(self, parent: Node, predicates: Sequence[Predicate]) -> None:
        super().__init__(parent)
        self.predicates = predicates

    def take(self, number: int, update: Update) -> None:
        arms = (str(n) for n, test in enumerate(self.predicates) if test(update.value))
        self.emit(update, next(arms, str(len(self.predicates))))


class Pass(Node):
    """Records as they come: merged, or updates of a table as a stream."""

    def take(self, number: int, update: Update) -> None:
        self.emit(Update(update.key, update.value, update.time))


# Tables


class Latest(Table):
    """A topic or a stream as a table."""

    def __init__(self, parent: Node, *, named: bool) -> None:
        super().__init__(parent)
        self.named = named
        self.rows: dict[Any, tuple[Any, int]] = {}

    def begin(self) -> None:
        self.has_store = self.named or needs_rows(self)

    def take(self, number: int, update: Update) -> None:
        if update.key is None:
            self.dropped += 1
            return
        old = self.get(update.key)[0] if self.has_store else None
        self.rows[update.key] = (update.value, update.time)
        self.emit(Update(update.key, update.value, update.time, old, self.has_store))

    def get(self, key: Any) -> tuple[Any, int]:
        return self.rows.get(key, (None, -1))


def needs_rows(node: Node) -> bool:
    """Whether somebody below looks up rows of a table, or needs those that updates replace."""
    return any(
        child.reads_rows(number)
        or (isinstance(child, Rows) and not child.named and needs_rows(child))
        for child, number, _ in node.below
    )


class Expiring(Node):
    """Updates on their way to a table whose rows leave: deletions come between them."""

    def __init__(self, parent: Node, model: PlainRetention) -> None:
        super().__init__(parent)
        self.model = model

    def take(self, number: int, update: Update) -> None:
        before = len(self.model.results)
        self.model.add(update.key, update.value, update.time)
        self.dropped = self.model.dropped
        for key, value, time in self.model.results[before:]:
            self.emit(Update(key, value, time))


class Versions(Table):
    """A table that knows its rows of the last `history` ms."""

    def __init__(self, parent: Node, history: int) -> None:
        super().__init__(parent)
        self.history = history
        self.newest = -1
        self.puts: dict[Any, dict[int, Any]] = {}

    def take(self, number: int, update: Update) -> None:
        key, time = update.key, update.time
        if key is None:
            self.dropped += 1
            return
        self.newest = max(self.newest, time)
        if time < self.newest - self.history:
            self.dropped += 1
            return
        versions = self.puts.setdefault(key, {})
        is_latest = time >= max(versions, default=-1)
        old = versions[max(versions)] if versions else None
        versions[time] = update.value
        self.emit(Update(key, update.value, time, old, knows_old=False, is_latest=is_latest))

    def get(self, key: Any) -> tuple[Any, int]:
        versions = self.puts.get(key)
        return (versions[max(versions)], max(versions)) if versions else (None, -1)

    def get_at(self, key: Any, time: int) -> Any:
        versions = self.puts.get(key, {})
        seen = [when for when in versions if when <= time]
        if not seen:
            return None
        is_known = max(seen) == max(versions) or time >= self.newest - self.history
        return versions[max(seen)] if is_known else None


class Rows(Table):
    """A table whose rows are made of another's: None for none. `filters`: updates without a row
    before and after go no further."""

    is_table = True

    def __init__(
        self, parent: Table, function: Callable[[Any, Any], Any], *, filters: bool, named: bool
    ) -> None:
        super().__init__(parent)
        self.above = parent
        self.function, self.filters, self.named = function, filters, named
        self.rows: dict[Any, tuple[Any, int]] = {}

    def made(self, key: Any, row: Any) -> Any:
        """The row that a row makes; none where the function fails."""
        try:
            return None if row is None else self.function(key, row)
        except Refused:
            return None

    def fails(self, key: Any, row: Any) -> bool:
        try:
            if row is not None:
                self.function(key, row)
        except Refused:
            return True
        return False

    def take(self, number: int, update: Update) -> None:
        key, value = update.key, self.made(update.key, update.value)
        old, knows_old = self.made(key, update.old), update.knows_old
        if self.fails(key, update.value):
            self.dropped += 1
            if self.named or not knows_old or old is None:
                return  # else the row of before is deleted
        if self.named:
            (old, _), knows_old = self.get(key), not is_versioned(self.above)
            self.rows[key] = (value, update.time)
        if self.filters and knows_old and old is None and value is None:
            return
        self.emit(Update(key, value, update.time, old, knows_old, update.is_latest))

    def get(self, key: Any) -> tuple[Any, int]:
        if self.named:
            return self.rows.get(key, (None, -1))
        row, time = self.above.get(key)
        return self.made(key, row), time

    def get_at(self, key: Any, time: int) -> Any:
        return self.get(key)[0] if self.named else self.made(key, self.above.get_at(key, time))


def is_versioned(node: Node) -> bool:
    """Whether a table knows older rows, which is why its updates do not tell the one before."""
    return isinstance(node, Versions) or (
        isinstance(node, Rows) and not node.named and is_versioned(node.above)
    )


class Regroup(Node):
    """Changes of a table as changes of its groups."""

    def reads_rows(self, number: int) -> bool:
        return True

    def __init__(self, parent: Node, function: Callable[[Any, Any], Any]) -> None:
        super().__init__(parent)
        self.function = function

    def take(self, number: int, update: Update) -> None:
        if not update.is_latest:
            return
        group, before = (
            None if row is None else self.function(update.key, row)
            for row in (update.value, update.old)
        )
        if before is not None and before == group:
            self.emit(Update(group, update.value, update.time, update.old))
            return
        if before is not None:
            self.emit(Update(before, None, update.time, update.old))
        if group is not None:
            self.emit(Update(group, update.value, update.time))


class Folded(Table):
    """A table of what is folded of the values of each key; of a table's groups with `subtract`."""

    def __init__(
        self,
        parent: Node,
        init: Callable[[], Any],
        add: Callable[[Any, Any], Any],
        row: Callable[[Any], Any],
        subtract: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        super().__init__(parent)
        self.init, self.add, self.row, self.subtract = init, add, row, subtract
        self.states: dict[Any, tuple[Any, int]] = {}

    def take(self, number: int, update: Update) -> None:
        key, value = update.key, update.value
        if key is None or (value is None and self.subtract is None):
            self.dropped += 1
            return
        state, stamp = self.states.get(key, (self.init(), update.time))
        old = self.get(key)[0]
        if update.old is not None and self.subtract is not None:
            state = self.subtract(state, update.old)
        if value is not None:
            state = self.add(state, value)
        if state is None:
            self.states.pop(key, None)
        else:
            self.states[key] = (state, max(stamp, update.time))
        row = None if state is None else self.row(state)
        self.emit(Update(key, row, max(stamp, update.time), old, knows_old=True))

    def get(self, key: Any) -> tuple[Any, int]:
        state, time = self.states.get(key, (None, -1))
        return None if state is None else self.row(state), time


class Windows(Table):
    """A model of windows as a table: `add` of it leads to updates, final and late records."""

    def __init__(self, *parents: Node, model: Any) -> None:
        super().__init__(*parents)
        self.model = model
        self.rows: dict[Any, tuple[Any, int]] = {}

    def add(self, number: int, update: Update) -> None:
        self.model.add(update.key, update.value, update.time)

    def take(self, number: int, update: Update) -> None:
        model = self.model
        updates, final, late = len(model.updates), len(model.final), len(model.late)
        self.add(number, update)
        self.dropped = model.dropped
        for key, value, time in model.late[late:]:
            self.emit(Update(key, value, time), "late")
        for key, value, time in model.updates[updates:]:
            old, _ = self.rows.get(key, (None, -1))
            self.rows[key] = (value, time)
            self.emit(Update(key, value, time, old, knows_old=True))
        for key, value, time in model.final[final:]:
            self.emit(Update(key, value, time), "final")

    def end(self) -> None:
        over = {row[0] for row in self.model.final}
        for key, (value, time) in self.rows.items():
            if value is not None and key not in over:
                self.emit(Update(key, value, time), "final")

    def get(self, key: Any) -> tuple[Any, int]:
        """The row of a window, as long as joins find it."""
        return self.rows.get(key, (None, -1)) if self.model.shows(key) else (None, -1)


class Together(Windows):
    """Several streams in one table."""

    def __init__(self, *parents: Node, inputs: Cogroup) -> None:
        super().__init__(*parents, model=inputs.model)
        self.inputs = inputs

    def begin(self) -> None:
        self.model.closes = leads_to_final(self)

    def add(self, number: int, update: Update) -> None:
        self.inputs.take(number, update.key, update.value, update.time)


def leads_to_final(node: Node) -> bool:
    """Whether somebody below a table of windows wants their final rows."""
    return any(
        port == "final"
        or (isinstance(child, Holding) and isinstance(child.held, FinalRows))
        or (child.is_table and leads_to_final(child))
        for child, _, port in node.below
    )


class Holding(Table):
    """Rows that are held back: suppressed, or until their windows are over."""

    is_table = True

    def reads_rows(self, number: int) -> bool:
        return True

    def __init__(self, parent: Table, held: Held) -> None:
        super().__init__(parent)
        self.above, self.held = parent, held

    def take(self, number: int, update: Update) -> None:
        data = key_bytes(update.key)
        for each in self.held.take(
            HeldUpdate(update.key, data, update.old, update.value, update.time)
        ):
            self.emit(Update(each.key, each.new, each.time, each.old, knows_old=True))

    def get(self, key: Any) -> tuple[Any, int]:
        """The row above, unless that one waits."""
        if (waits := self.held.waiting.get(key_bytes(key))) is None:
            return self.above.get(key)
        return waits[1].old, -1


def key_bytes(key: Any) -> bytes:
    """Keys in the order of what they are written as."""
    if not isinstance(key, Windowed):
        return str(key).encode()
    return str(key.key).encode() + key.end.to_bytes(8, "big") + key.start.to_bytes(8, "big")


class Sequences(Node):
    """Sequences of records of a key that meet conditions in turn."""

    def __init__(
        self,
        parent: Node,
        steps: Sequence[Step],
        without: Predicate,
        within: int,
        grace: int,
        row: Callable[[list[Any]], Any],
    ) -> None:
        super().__init__(parent)
        self.steps = steps
        self.without = lambda v, _: bool(without(v))
        self.within, self.grace = within, grace
        self.row = row
        self.time = -1
        self.waiting: list[Row] = []
        self.seen: dict[Any, list[Row]] = {}

    def take(self, number: int, update: Update) -> None:
        if update.key is None:
            self.dropped += 1
            return
        self.time = max(self.time, update.time)
        if update.time < self.time - self.grace:
            self.dropped += 1
            return
        self.waiting.append((update.key, update.value, update.time))
        due = [row for row in self.waiting if row[2] <= self.time - self.grace]
        self.waiting = [row for row in self.waiting if row not in due]
        for row in sorted(due, key=lambda each: each[2]):
            self.see(row)

    def see(self, row: Row) -> None:
        rows = self.seen.setdefault(row[0], [])
        before = len(self.found(rows))
        rows.append(row)
        for key, values, time in self.found(rows)[before:]:
            self.emit(Update(key, self.row(values), time))

    def found(self, rows: list[Row]) -> list[Row]:
        return matches(rows, self.steps, self.without, self.within)[0]


# Processors


class Timer:
    """Rings on the multiples of its period, the first record always."""

    def __init__(self, period: int, call: Callable[[int], object]) -> None:
        self.due, self.period, self.call = 0, period, call

    def ring(self, time: int) -> None:
        self.call(time)
        self.due = (time // self.period + 1) * self.period


class Processing(Node):
    """A processor with one store of keys and values; it is its own context."""

    def __init__(self, parent: Node, processor: Any) -> None:
        super().__init__(parent)
        self.processor = processor
        self.rows = PlainKeyValues()

    def begin(self) -> None:
        self.processor.init(self)

    def take(self, number: int, update: Update) -> None:
        self.processor.process(Record(update.key, update.value, update.time))

    @property
    def stream_time(self) -> int:
        assert self.task is not None
        return self.task.stream_time

    def forward(self, record: Record) -> None:
        self.emit(Update(record.key, record.value, record.timestamp))

    def store(self, name: str) -> PlainKeyValues:
        return self.rows

    def schedule(self, interval: int, clock: str, function: Callable[[int], object]) -> None:
        assert clock == "stream_time"
        assert self.task is not None
        self.task.timers.append(Timer(interval, function))


class LookingInto(Node):
    """A processor that looks into a table; it is its own context, and its own store."""

    def __init__(self, stream: Node, table: Table, processor: Any) -> None:
        super().__init__(stream, table)
        self.table, self.processor = table, processor

    def looks_up(self, number: int) -> bool:
        return number == 1

    reads_rows = looks_up

    def begin(self) -> None:
        self.processor.init(self)

    def take(self, number: int, update: Update) -> None:
        if number == 0:
            self.processor.process(Record(update.key, update.value, update.time))

    def forward(self, record: Record) -> None:
        self.emit(Update(record.key, record.value, record.timestamp))

    def store(self, name: str) -> LookingInto:
        return self

    def get(self, key: Any) -> Any:
        return self.table.get(key)[0]
