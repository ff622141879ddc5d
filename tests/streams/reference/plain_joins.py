"""Joins as nodes of a machine, each written from its rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from reference.foreign_joins import PlainForeignJoin
from reference.joins import PlainAsOf, PlainJoin
from reference.machine import Node, Table, Update

Joined = Callable[[Any, Any], Any]


class TableJoin(Table):
    """Two tables as one."""

    is_table = True

    def reads_rows(self, number: int) -> bool:
        return True

    def __init__(self, left: Table, right: Table, how: str, join: Joined, *, named: bool) -> None:
        super().__init__(left, right)
        self.sides = left, right
        self.how, self.join, self.named = how, join, named
        self.sent: dict[Any, tuple[Any, int]] = {}

    def row(self, left: Any, right: Any) -> Any:
        missing = {"inner": left is None or right is None, "left": left is None}
        is_none = missing.get(self.how, left is None and right is None)
        return None if is_none else self.join(left, right)

    def take(self, number: int, update: Update) -> None:
        if update.key is None:
            self.dropped += 1
            return
        if not update.is_latest:
            self.dropped += 1
            return
        other, stamp = self.sides[1 - number].get(update.key)
        is_alone = other is None
        sends_alone = self.how == "outer" or (self.how == "left" and number == 0)
        is_change = update.old is not None or update.value is not None
        if is_alone and not (sends_alone and is_change):
            return
        row = self.row(*((update.value, other) if number == 0 else (other, update.value)))
        time = update.time if is_alone else max(update.time, stamp)
        old = self.sent.get(update.key, (None, -1))[0]
        self.sent[update.key] = (row, time)
        self.emit(Update(update.key, row, time, old, knows_old=True))

    def get(self, key: Any) -> tuple[Any, int]:
        if self.named:
            return self.sent.get(key, (None, -1))
        (left, left_time), (right, right_time) = (side.get(key) for side in self.sides)
        times = [-1 if left is None else left_time, -1 if right is None else right_time]
        return self.row(left, right), max(times)


class TableLookup(Node):
    """A stream joined with the rows of a table; with `grace` it waits, and finds the row of its
    time."""

    def __init__(
        self, stream: Node, table: Table, how: str, join: Joined, grace: int | None = None
    ) -> None:
        super().__init__(stream, table)
        self.table, self.how, self.join, self.grace = table, how, join, grace
        self.takes_null_keys = how == "left"
        self.time = -1
        self.waiting: list[Update] = []

    def looks_up(self, number: int) -> bool:
        return number == 1

    reads_rows = looks_up

    def take(self, number: int, update: Update) -> None:
        if number == 1:
            return
        self.time = max(self.time, update.time)
        if update.value is None or (update.key is None and self.how == "inner"):
            self.dropped += 1
            return
        if not self.grace or update.time < self.time - self.grace:
            self.join_one(update)
            if not self.grace:
                return
        else:
            self.waiting.append(update)
        due = [each for each in self.waiting if each.time <= self.time - (self.grace or 0)]
        self.waiting = [each for each in self.waiting if each not in due]
        for each in sorted(due, key=lambda e: (e.time, e.key is not None, e.key or "")):
            self.join_one(each)

    def end(self) -> None:
        for each in self.waiting:
            self.join_one(each)

    def join_one(self, update: Update) -> None:
        found = self.table.get_at(update.key, update.time)
        if found is not None or self.how == "left":
            self.emit(Update(update.key, self.join(update.value, found), update.time))


class Everywhere(Node):
    """A global table: there before the records that look into it."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[Any, Any] = {}

    def take(self, number: int, update: Update) -> None:
        if update.key is None:
            self.dropped += 1
        else:
            self.rows[update.key] = update.value


class GlobalLookup(Node):
    """A stream joined with a global table by a key that is made of the record."""

    def __init__(
        self, stream: Node, table: Everywhere, how: str, select: Callable[[Any], Any], join: Joined
    ) -> None:
        super().__init__(stream)
        self.table, self.how, self.select, self.join = table, how, select, join
        self.takes_null_keys = how == "left"

    def take(self, number: int, update: Update) -> None:
        wanted = None if update.value is None else self.select(update.value)
        found = self.table.rows.get(wanted)
        if update.value is None or (wanted is None and self.how == "inner"):
            self.dropped += 1
        elif found is not None or self.how == "left":
            self.emit(Update(update.key, self.join(update.value, found), update.time))


class StreamsJoin(Node):
    """Two streams joined by time, as the model says."""

    def __init__(self, left: Node, right: Node, model: PlainJoin | PlainAsOf, join: Joined) -> None:
        super().__init__(left, right)
        self.model, self.join = model, join
        self.takes_null_keys = model.how != "inner"

    def take(self, number: int, update: Update) -> None:
        before = len(self.model.results)
        self.model.add(number, update.key, update.value, update.time)
        self.dropped = self.model.dropped
        self._emit_from(before)

    def end(self) -> None:
        before = len(self.model.results)
        self.model.end()
        self._emit_from(before)

    def _emit_from(self, before: int) -> None:
        for key, (left, right), time in self.model.results[before:]:
            self.emit(Update(key, self.join(left, right), time))


class ForeignJoin(Node):
    """Two tables joined by a key in the left row: left updates come through a topic."""

    def reads_rows(self, number: int) -> bool:
        return True

    def __init__(self, left: Node, right: Node, model: PlainForeignJoin) -> None:
        super().__init__(left, right)
        self.model = model
        self.takes_null_keys = model.how == "left"

    def take(self, number: int, update: Update) -> None:
        if not update.is_latest:
            self.dropped += 1
            return
        before = len(self.model.results)
        side = self.model.left if number == 0 else self.model.right
        side(update.key, update.value, update.time)
        self.dropped = self.model.dropped
        for key, value, time in self.model.results[before:]:
            self.emit(Update(key, value, time, old=self.model.lefts.get(key)))


class Answers(Table):
    """The results of a join by a foreign key, which come back to the task of its left side."""

    def __init__(self, answers: Node, left: Table) -> None:
        super().__init__(answers)
        self.left = left
        self.sent: dict[Any, tuple[Any, int]] = {}

    def shares(self) -> Iterable[Node]:
        return (self.left,)

    def take(self, number: int, update: Update) -> None:
        left = self.left.get(update.key)[0]
        if update.old != left:
            self.dropped += left is None
            return  # it has been asked again, or is gone
        old = self.get(update.key)[0]
        self.sent[update.key] = (update.value, update.time)
        self.emit(Update(update.key, update.value, update.time, old, knows_old=True))

    def get(self, key: Any) -> tuple[Any, int]:
        return self.sent.get(key, (None, -1))
