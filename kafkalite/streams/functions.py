"""User functions as a plan holds them: what is called, and with what.                     [P]

A function takes the value; `with_key=True` gives it key and value, `with_record=True` the whole
record. A field name stands for a function that takes that field out of the value.

Fails  with TopologyError where the plan is built: no function, an async one, or one that takes
       another number of arguments than it will be called with.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from operator import itemgetter
from typing import Any

from kafkalite.errors import TopologyError


class Passes(Enum):
    """What a user function is called with."""

    VALUE = "the value"
    KEY_AND_VALUE = "key and value"
    RECORD = "the record"


@dataclass(frozen=True, slots=True)
class Function:
    """A user function and what it is called with; `field` when a field name stood in its place."""

    call: Callable[..., Any]
    passes: Passes = Passes.VALUE
    field: str | None = None

    @property
    def takes_key(self) -> bool:
        """Whether the key has to be decoded for it."""
        return self.passes is not Passes.VALUE


def function_of(
    given: object,
    operator: str,
    *,
    with_key: bool = False,
    with_record: bool = False,
) -> Function:
    """`given` as plan data. `operator` is named in errors."""
    if with_key and with_record:
        raise TopologyError(f"{operator}: with_key and with_record exclude each other")
    if isinstance(given, str):
        if with_key or with_record:
            raise TopologyError(f"{operator}: field {given!r} is taken out of the value alone")
        return Function(itemgetter(given), field=given)
    if not callable(given):
        kind = type(given).__name__
        raise TopologyError(f"{operator}: expected a function or a field name, got {kind}")
    passes = Passes.KEY_AND_VALUE if with_key else Passes.RECORD if with_record else Passes.VALUE
    hint = "" if with_key or with_record else "; with_key=True passes key and value"
    check_arguments(given, 2 if with_key else 1, operator, f"{passes.value}{hint}")
    return Function(given, passes)


def check_arguments(given: object, count: int, operator: str, what: str) -> None:
    """TopologyError unless `given` can be called with `count` positional arguments.

    An async function cannot: nobody would await what it returns, which counts as true.
    """
    if not callable(given):
        raise TopologyError(f"{operator}: expected a function, got {type(given).__name__}")
    for function in (given, getattr(given, "__call__", None)):  # noqa: B004 - an object's own
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            name = getattr(given, "__name__", repr(given))
            raise TopologyError(f"{operator}: {name} is async; functions are called, not awaited")
    try:
        signature = inspect.signature(given)
    except (TypeError, ValueError):  # some builtins do not tell
        return
    try:
        signature.bind(*range(count))
    except TypeError as error:
        name = getattr(given, "__name__", repr(given))
        raise TopologyError(
            f"{operator}: {name}{signature} cannot be called with {what}: {error}"
        ) from None
