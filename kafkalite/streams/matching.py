"""Patterns of records: `match` as an operator of a stream.                                  [P]

    payments.match(
        small=col("amount") < 1,
        large=col("amount") > 500,
        not_between=col("kind") == "login",
        within="10m",
    )

Fails  with TopologyError, which names the operator, where the mistake stands.
Source Flink's MATCH_RECOGNIZE: PATTERN (small other*? large) WITHIN INTERVAL, AFTER MATCH SKIP PAST
       LAST ROW.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic

from kafkalite.core.generics import K_co, V_co
from kafkalite.errors import TopologyError
from kafkalite.serde.serde import Serializer
from kafkalite.streams import plan as p
from kafkalite.streams.draft import Draft, operator_of, serde_or_none
from kafkalite.streams.durations import Duration, not_negative
from kafkalite.streams.functions import Function, OfValue, function_of, predicate_of

if TYPE_CHECKING:
    from kafkalite.streams.stream import Stream


class Matching(Generic[K_co, V_co]):
    """Mixed into Stream."""

    _draft: Draft
    _node: p.Node

    def match(
        self,
        *,
        within: Duration,
        not_between: OfValue[V_co, object] | None = None,
        grace: Duration = 0,
        key: Serializer[K_co] | None = None,
        value: Serializer[V_co] | None = None,
        name: str | None = None,
        on_error: p.OnError | None = None,
        **steps: OfValue[V_co, object],
    ) -> Stream[K_co, dict[str, Any]]:
        """One record for each sequence of records of a key that meet these conditions in turn.

        Its value has the value of each record under the name of its condition. The last record is
        at most `within` later than the first. Others may stand between, but none for which
        `not_between` is true. Records count in the order of their timestamps: they wait `grace`
        for earlier ones, and are dropped as late when they come after that.
        """
        operator = operator_of("match", name, self._node)
        if len(steps) < 2:
            raise TopologyError(f"{operator}: expected at least two conditions, got {list(steps)}")
        checked = tuple((word, self._condition(f, operator)) for word, f in steps.items())
        without = None if not_between is None else self._condition(not_between, operator)
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
            key=serde_or_none(key, "key=", operator),
            value=serde_or_none(value, "value=", operator),
        )
        return self._draft.stream(node)

    def _condition(self, given: object, operator: str) -> Function:
        function = function_of(given, operator, shape=self._draft.shapes[self._node])
        return predicate_of(function, operator, null_is=False)
