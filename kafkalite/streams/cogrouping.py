"""Several streams that make one table: the values on their way, and the fold of them.         [P]

    carts.cogroup(add_cart).cogroup(orders, add_order).window(tumbling("1h")).aggregate(dict)

The streams meet in one node, which marks each value with the number of its input; the aggregate
below calls the function of that input. So stores, windows and results are those of any aggregate.

Source Kafka Streams' CogroupedKStream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kafkalite.streams.aggregates import MISSING, Fold, fold

Add = Callable[[Any, Any], Any]
Tagged = tuple[int, Any]  # the number of the input, the value


@dataclass(frozen=True, slots=True, kw_only=True)
class CogroupFold(Fold):
    """A fold with a function for each input."""

    adders: tuple[Add, ...]
    word = "cogroup"

    def step(self, partial: Any, value: Tagged) -> Any:
        """The partial after one more value."""
        number, argument = value
        return self.adders[number](self.init() if partial is MISSING else partial, argument)


def cogroup_fold(
    init: Any, adders: tuple[Add, ...], merge: Callable[[Any, Any], Any] | None
) -> CogroupFold:
    """The aggregate of several streams. TopologyError for functions of other arguments."""
    checked = fold(init, adders[0], merge)
    assert isinstance(checked, Fold)
    return CogroupFold(init=checked.init, adder=checked.adder, merger=checked.merger, adders=adders)


def untagged(value: Tagged) -> Any:
    """A value as its stream had it."""
    return value[1]
