"""Operators that make values of fields: on streams and on tables alike.                    [P]

    orders.select("id", gross=col("amount") * 1.19)     {"id": …, "gross": …}
    orders.assign(kept=lit(True))                       all fields, and one more
    orders.drop("note").rename(amount="net")

All expressions see the value as it was above. A null value stays null.

Owns   nothing: each is a map by an expression.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic, TypeVar

from kafkalite.errors import TopologyError
from kafkalite.streams import plan as p
from kafkalite.streams.expressions.expression import Expression, call, fields_of, value

F_co = TypeVar("F_co", covariant=True)


class Fields(Generic[F_co]):
    """Mixed into streams and tables; `F_co` is a stream or table of dicts."""

    @abstractmethod
    def _formula(
        self, word: str, made: Expression, name: str | None, on_error: p.OnError | None
    ) -> F_co:
        """A map by an expression."""

    def select(
        self,
        *fields: str | Expression,
        name: str | None = None,
        on_error: p.OnError | None = None,
        **expressions: Any,
    ) -> F_co:
        """Makes values of these fields only: names of fields, expressions, `new=expression`."""
        _check_name(name, "select")
        chosen = fields_of("select", fields, expressions)
        made = call("select", value(), *chosen.values(), options=tuple(chosen))
        return self._formula("select", made, name, on_error)

    def assign(
        self,
        *fields: Expression,
        name: str | None = None,
        on_error: p.OnError | None = None,
        **expressions: Any,
    ) -> F_co:
        """Adds fields to the value, or replaces some of them."""
        _check_name(name, "assign")
        chosen = fields_of("assign", fields, expressions)
        made = call("with_fields", value(), *chosen.values(), options=tuple(chosen))
        return self._formula("assign", made, name, on_error)

    def drop(
        self, *fields: str, name: str | None = None, on_error: p.OnError | None = None
    ) -> F_co:
        """Removes fields from the value."""
        _check_names("drop", fields)
        return self._formula("drop", call("drop_fields", value(), options=fields), name, on_error)

    def rename(
        self, *, name: str | None = None, on_error: p.OnError | None = None, **names: str
    ) -> F_co:
        """Renames fields of the value: `rename(old="new")`."""
        _check_names("rename", tuple(names.values()))
        if len(set(names.values())) < len(names):
            raise TopologyError(f"rename: two fields would have one name: {names}")
        made = call("rename_fields", value(), options=tuple(names.items()))
        return self._formula("rename", made, name, on_error)


def _check_name(name: object, operator: str) -> None:
    if name is not None and not isinstance(name, str):
        raise TopologyError(
            f'{operator}: name= is the operator\'s name; the field is made by {name}.alias("name")'
        )


def _check_names(operator: str, names: tuple[object, ...]) -> None:
    if not names:
        raise TopologyError(f"{operator}: expected at least one field")
    for name in names:
        if not isinstance(name, str):
            raise TopologyError(f"{operator}: expected the name of a field, got {name!r}")
