"""Several streams in one table, one record at a time: each input has its own stream time."""

from __future__ import annotations

from typing import Any

from reference.windows import Fold, Row, Sliding

TOGETHER = Fold(list, lambda rows, one: [*rows, list(one)], lambda a, b: [*a, *b])


class Groups:
    """No windows: a row for each key. Null values are dropped."""

    def __init__(self, fold: Fold) -> None:
        self.fold = fold
        self.time = -1
        self.rows: dict[str, tuple[int, Any]] = {}
        self.updates: list[Row] = []
        self.final: list[Row] = []
        self.late: list[Row] = []
        self.dropped = 0
        self.closes = False

    def add(self, key: str | None, value: Any, timestamp: int) -> None:
        if key is None or value is None:
            self.dropped += 1
            return
        stamp, row = self.rows.get(key, (timestamp, self.fold.init()))
        stamp, row = max(stamp, timestamp), self.fold.add(row, value)
        self.rows[key] = stamp, row
        self.updates.append((key, self.fold.row(row), stamp))

    def shows(self, key: Any) -> bool:
        return True


class Cogroup:
    """Folds of (number of the input, value) in a model of windows, or in `Groups`.

    Where the model closes windows they are over for all inputs when the newest record of any has
    passed them.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.times: dict[int, int] = {}
        self.drops_nulls = isinstance(model, Groups | Sliding)
        model.closes = False

    def take(self, number: int, key: str | None, value: Any, time: int) -> list[Row]:
        """The updates that a record leads to."""
        model = self.model
        updates, late = len(model.updates), len(model.late)
        model.time = self.times.get(number, -1)
        if model.closes:
            model.time = max(self.times.values(), default=-1)
        model.add(key, None if value is None and self.drops_nulls else (number, value), time)
        self.times[number] = model.time
        model.late[late:] = [(key, value[1], time) for key, value, time in model.late[late:]]
        return list(model.updates[updates:])

    @property
    def dropped(self) -> int:
        return int(self.model.dropped)
