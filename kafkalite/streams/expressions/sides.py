"""The values of a join in expressions.                                                    [P]

    orders.join(rates, left("amount") * right("rate"), within="5m")

Owns   the words for both sides.
"""

from __future__ import annotations

from kafkalite.streams.expressions.expression import Expression
from kafkalite.streams.expressions.tree import LEFT, RIGHT


def left(name: str | None = None) -> Expression:
    """The left value of a join, or a field of it; null, and so its fields, where there is none."""
    return Expression(LEFT) if name is None else Expression(LEFT)[name]


def right(name: str | None = None) -> Expression:
    """The right value of a join, or a field of it; null, and so its fields, where there is none."""
    return Expression(RIGHT) if name is None else Expression(RIGHT)[name]
