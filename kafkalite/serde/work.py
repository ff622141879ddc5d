"""How much work one question about schemas may be.                                        [P]

A schema of a few hundred bytes can ask for more than a machine will ever do: records whose defaults
hold each other's defaults double with each record, and two rings of records make as many pairs as
the product of their lengths. So whoever walks a schema counts its steps.

Owns   the count. A step of a walk takes about a microsecond.
Fails  with SchemaError that names the limit.
"""

from __future__ import annotations

from kafkalite.errors import SchemaError


class Work:
    """What is left of `limit` steps. `doing` begins the message: `comparing the schemas`."""

    __slots__ = ("_code", "_doing", "_left", "_limit", "_unit")

    def __init__(
        self, limit: int, doing: str, *, unit: str = "steps", code: int | None = None
    ) -> None:
        self._left = self._limit = limit
        self._doing, self._unit, self._code = doing, unit, code

    def take(self, steps: int = 1) -> None:
        """Counts some steps. SchemaError when there are none left."""
        self._left -= steps
        if self._left < 0:
            raise SchemaError(
                f"{self._doing} takes more than the {self._limit:,} {self._unit} that it may",
                code=self._code,
            )
