"""Patterns of records: `match` as an operator of a stream.                                  [P]

    payments.match(
        small=repeated(col("amount") < 1, at_least=2),
        large=col("amount") > 500,
        not_between=col("kind") == "login",
        within="10m",
    )

Fails  with TopologyError, which names the operator, where the mistake stands.
Source Flink's MATCH_RECOGNIZE: PATTERN (small{2,}? other*? large) WITHIN INTERVAL, AFTER MATCH SKIP
       PAST LAST ROW; its CEP library for the sequences that were not completed in time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, overload

from kafkalite.core.generics import K_co, V_co
from kafkalite.errors import TopologyError
from kafkalite.serde.serde import Serializer
from kafkalite.streams import plan as p
from kafkalite.streams.draft import Draft, operator_of, serde_or_none
from kafkalite.streams.durations import Duration, not_negative
from kafkalite.streams.functions import (
    CallableFunction,
    Function,
    OfValue,
    Passes,
    UserFunction,
    check_arguments,
    function_of,
    predicate_of,
)

if TYPE_CHECKING:
    from kafkalite.streams.stream import Stream

AT_MOST: Final = 1_000  # records of one repeated condition, unless more are asked for
Matched = Mapping[str, Any]  # by condition: the value that met it, or a list of them


@dataclass(frozen=True, slots=True)
class Repeated:
    """A condition that several records of a sequence meet: see `repeated`."""

    condition: UserFunction
    at_least: int
    at_most: int


def repeated(condition: UserFunction, *, at_least: int = 1, at_most: int = AT_MOST) -> Repeated:
    """In `match`, a condition for several records; its field in the match is a list of values.

    A record goes on to the next condition as soon as `at_least` records are there, and else counts
    here until there are `at_most`. `at_least=0`: the sequence may do without.
    """
    for word, number in (("at_least", at_least), ("at_most", at_most)):
        if type(number) is not int:
            raise TopologyError(f"repeated: {word}: expected an int, got {number!r}")
    if not 0 <= at_least <= at_most or at_most == 0:
        raise TopologyError(
            f"repeated: expected 0 <= at_least <= at_most and at_most > 0, got {at_least} and "
            f"{at_most}"
        )
    return Repeated(condition, at_least, at_most)


class Matching(Generic[K_co, V_co]):
    """Mixed into Stream."""

    _draft: Draft
    _node: p.Node

    @overload
    def match(
        self,
        *,
        within: Duration,
        not_between: OfValue[V_co, object] | None = None,
        grace: Duration = 0,
        with_matched: Literal[False] = False,
        key: Serializer[K_co] | None = None,
        value: Serializer[V_co] | None = None,
        name: str | None = None,
        on_error: p.OnError | None = None,
        **steps: OfValue[V_co, object] | Repeated,
    ) -> Stream[K_co, dict[str, Any]]: ...
    @overload
    def match(
        self,
        *,
        within: Duration,
        not_between: Callable[[V_co, Matched], object] | str | None = None,
        grace: Duration = 0,
        with_matched: Literal[True],
        key: Serializer[K_co] | None = None,
        value: Serializer[V_co] | None = None,
        name: str | None = None,
        on_error: p.OnError | None = None,
        **steps: Callable[[V_co, Matched], object] | str | Repeated,
    ) -> Stream[K_co, dict[str, Any]]: ...
    def match(
        self,
        *,
        within: Duration,
        not_between: UserFunction | None = None,
        grace: Duration = 0,
        with_matched: bool = False,
        key: Serializer[K_co] | None = None,
        value: Serializer[V_co] | None = None,
        name: str | None = None,
        on_error: p.OnError | None = None,
        **steps: UserFunction | Repeated,
    ) -> Stream[K_co, dict[str, Any]]:
        """One record for each sequence of records of a key that meet these conditions in turn.

        Its value has the value of each record under the name of its condition. The last record is
        at most `within` later than the first. Others may stand between, but none for which
        `not_between` is true. Records count in the order of their timestamps: they wait `grace`
        for earlier ones, and are dropped as late when they come after that. With `with_matched`
        the functions also take the values that matched so far, a dict by the conditions' names.
        """
        operator = operator_of("match", name, self._node)
        checked = tuple(
            self._step(word, given, operator, with_matched=with_matched)
            for word, given in steps.items()
        )
        _check_steps(checked, operator)
        without = None
        if not_between is not None:
            without = self._condition(not_between, operator, with_matched=with_matched)
        node = self._draft.below(
            "match",
            p.Pattern,
            self._node,
            name,
            on_error,
            steps=checked,
            without=without,
            within_ms=not_negative(within, f"{operator}: within"),
            grace_ms=not_negative(grace, f"{operator}: grace"),
            with_matched=with_matched,
            key=serde_or_none(key, "key=", operator),
            value=serde_or_none(value, "value=", operator),
        )
        return self._draft.stream(node)

    def late(self, *, name: str | None = None) -> Stream:
        """Of a match: the records that came too late for it, as they came."""
        return self._beside("late", p.Late, name)

    def unfinished(self, *, name: str | None = None) -> Stream[K_co, dict[str, Any]]:
        """Of a match: the sequences that were not completed in time, with the values so far.

        Their timestamp is that of their first record plus `within`. A sequence that `not_between`
        ended, or that another match took over, is none of them.
        """
        return self._beside("unfinished", p.Unfinished, name)

    def _beside(self, word: str, kind: type[p.Node], name: str | None) -> Stream:
        if not isinstance(self._node, p.Pattern):
            operator = operator_of(word, name, self._node)
            raise TopologyError(f"{operator}: this is no match: call it on what .match(…) returns")
        return self._draft.stream(self._draft.below(word, kind, self._node, name))

    def _step(
        self, word: str, given: UserFunction | Repeated, operator: str, *, with_matched: bool
    ) -> p.PatternStep:
        if not isinstance(given, Repeated):
            return p.PatternStep(word, self._condition(given, operator, with_matched=with_matched))
        condition = self._condition(given.condition, operator, with_matched=with_matched)
        return p.PatternStep(
            word, condition, repeats=True, at_least=given.at_least, at_most=given.at_most
        )

    def _condition(self, given: UserFunction, operator: str, *, with_matched: bool) -> Function:
        if with_matched and callable(given):
            check_arguments(given, 2, operator, Passes.VALUE_AND_MATCHED.value)
            return CallableFunction(given, Passes.VALUE_AND_MATCHED)
        function = function_of(given, operator, shape=self._draft.shapes[self._node])
        return predicate_of(function, operator, null_is=False)


def _check_steps(steps: tuple[p.PatternStep, ...], operator: str) -> None:
    """TopologyError unless these make sequences of at least two records."""
    for step in steps[:1] + steps[-1:]:
        if step.at_least == 0:
            raise TopologyError(
                f"{operator}: {step.name}: the first and the last condition need at_least=1 or more"
            )
    if sum(step.at_least for step in steps) < 2:
        names = [step.name for step in steps]
        raise TopologyError(f"{operator}: expected at least two conditions, got {names}")
