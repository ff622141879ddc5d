"""The nodes of patterns: part of the plan's vocabulary, which `plan` hands on.               [P]"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kafkalite.serde.serde import Serde
from kafkalite.streams.functions import Function
from kafkalite.streams.nodes import Node, Port


@dataclass(frozen=True, slots=True)
class PatternStep:
    """A condition of a pattern under its name; `repeats`: for several records, from `at_least`
    (0: the step may be left out) to `at_most`."""

    name: str
    condition: Function
    repeats: bool = False
    at_least: int = 1
    at_most: int = 1


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pattern(Node):
    """One record for each sequence of records of a key that meet `steps` in turn, within a time and
    with none between for which `without` is true. Owns a store.

    `with_matched`: callables also get the values matched so far. `key`, `value`: the serdes of the
    internal topic, where the key has changed.
    """

    changes_value: ClassVar[bool] = True
    pushes_often: ClassVar[bool] = True

    steps: tuple[PatternStep, ...]
    without: Function | None
    within_ms: int
    grace_ms: int
    with_matched: bool = False
    key: Serde | None = None
    value: Serde | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Unfinished(Node):
    """The sequences of a Pattern that were not completed in time."""

    reads: ClassVar[Port] = Port.UNFINISHED
    changes_value: ClassVar[bool] = True
