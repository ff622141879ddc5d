"""A limit on the work that one request about schemas may cause.                            [P]

A schema of a few hundred bytes can cause endless work: the defaults of nested records double with
each record, and comparing two rings of records takes as many pairs as the product of their lengths.
So every walk over a schema counts its steps.

Owns   the count. A step takes about a microsecond.
Fails  with SchemaError that names the limit.
"""

from __future__ import annotations

from kafkalite.errors import SchemaError


class Work:
    """The remaining steps of `limit`. `doing` begins the message: `comparing the schemas`."""

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
