"""How far a sequence is in the steps of a pattern, and where the next record takes it.       [P]

The values of a sequence have an entry for each step up to the one it is in: the value, or a list
where the step repeats. A record goes as far as it can:

    a   b (0 to 9)   c      a record that meets c ends the sequence, even if it meets b, too;
                            one that meets b alone is added to b's list; others change nothing

Owns   the rule; it keeps no sequences.
Source Flink's CEP: relaxed contiguity (followedBy), reluctant quantifiers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kafkalite.streams.expressions.tree import KEY, TIMESTAMP, VALUE
from kafkalite.streams.functions import CallableFunction, ExpressionFunction, Function, Passes
from kafkalite.streams.local.calling import called
from kafkalite.streams.patterns import Pattern, PatternStep

Values = list[Any]
Met = Callable[[Values], bool]  # does the record at hand meet a condition, given what matched?
Condition = Callable[[Any, Any, int, dict[str, Any]], bool]  # of key, value, timestamp, matched


class Steps:
    """The steps of one pattern."""

    def __init__(self, node: Pattern) -> None:
        self._steps = node.steps
        self._conditions = [condition_of(step.condition) for step in node.steps]
        self._without = None if node.without is None else condition_of(node.without)
        self._with_matched = node.with_matched

    def record(self, key: Any, value: Any, stamp: int) -> OneRecord:
        """Judges one record; what it raises is the conditions' own."""
        matched = self._named if self._with_matched else _nothing
        judged: dict[int, bool] = {}

        def met(index: int, values: Values) -> bool:
            if self._with_matched:
                return self._conditions[index](key, value, stamp, matched(values))
            if index not in judged:
                judged[index] = self._conditions[index](key, value, stamp, {})
            return judged[index]

        def ends(values: Values) -> bool:
            if self._without is None:
                return False
            if not self._with_matched and -1 in judged:
                return judged[-1]
            judged[-1] = self._without(key, value, stamp, matched(values))
            return judged[-1]

        return OneRecord(self._steps, value, met, ends)

    def match(self, values: Values) -> dict[str, Any]:
        """What goes out of a sequence."""
        return self._named(values)

    def _named(self, values: Values) -> dict[str, Any]:
        return {step.name: value for step, value in zip(self._steps, values, strict=False)}


class OneRecord:
    """What one record does to sequences of its key."""

    def __init__(
        self,
        steps: Sequence[PatternStep],
        value: Any,
        met: Callable[[int, Values], bool],
        ends: Met,
    ) -> None:
        self._steps = steps
        self._value = value
        self._met = met
        self.ends = ends

    def begun(self) -> Values | None:
        """The sequence that begins with it."""
        return self._entered([], 0) if self._met(0, []) else None

    def added(self, values: Values) -> Values | None:
        """The sequence once it takes the record; None: it does not."""
        at = len(values) - 1
        step = self._steps[at]
        count = len(values[at]) if step.repeats else 1
        if count >= step.at_least:
            for index in reversed(self._within_reach(at)):
                if self._met(index, values):
                    return self._entered(values, index)
        if step.repeats and count < step.at_most and self._met(at, values):
            return [*values[:at], [*values[at], self._value]]
        return None

    def is_whole(self, values: Values) -> bool:
        """Whether a sequence has all that it needs."""
        last = self._steps[-1]
        return len(values) == len(self._steps) and (
            not last.repeats or len(values[-1]) >= last.at_least
        )

    def _within_reach(self, at: int) -> range:
        """The steps that may come after the one `at`: up to the first that must."""
        end = at + 1
        while self._steps[end : end + 1] and self._steps[end].at_least == 0:
            end += 1
        return range(at + 1, min(end + 1, len(self._steps)))

    def _entered(self, values: Values, index: int) -> Values:
        entry = [self._value] if self._steps[index].repeats else self._value
        return [*values, *([] for _ in range(len(values), index)), entry]


def condition_of(function: Function) -> Condition:
    """A condition of key, value, timestamp and what matched, whatever the function looks at."""
    call = called(function)
    if isinstance(function, CallableFunction):
        if function.passes is Passes.VALUE_AND_MATCHED:
            return lambda key, value, stamp, matched: bool(call(value, matched))
        return lambda key, value, stamp, matched: bool(call(value))
    return _of_expression(function, call)


def _of_expression(function: ExpressionFunction, call: Callable[..., Any]) -> Condition:
    order = {KEY: 0, VALUE: 1, TIMESTAMP: 2}
    takes = [order[each] for each in function.inputs]

    def condition(key: Any, value: Any, stamp: int, matched: dict[str, Any]) -> bool:
        given = (key, value, stamp)
        return bool(call(*(given[index] for index in takes)))

    return condition


def _nothing(values: Values) -> dict[str, Any]:
    return {}
