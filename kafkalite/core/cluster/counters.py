"""Numbers in the coordination tree that only rise, by one with a transaction.               [D]

Owns   nothing; whoever raises a number owns its path.
Fails  with CoordinationError for a value that is no number, and as the port does.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final, NamedTuple

from kafkalite.core.cluster.coordination import Check, Coordination, Create, Set
from kafkalite.errors import (
    CoordinationError,
    CoordinationUnavailable,
    NodeExists,
    OutcomeUnknown,
)

ATTEMPTS_MAX: Final = 10


class Counter(NamedTuple):
    """The number at a path, and the version of the path."""

    path: str
    number: int
    version: int

    def raised(self) -> Set:
        """The operation that raises it by one; it fails where another has done so."""
        return Set(self.path, b"%d" % (self.number + 1), self.version)

    def unchanged(self) -> Check:
        """The operation that fails where another has raised it."""
        return Check(self.path, self.version)


async def counter(coordination: Coordination, path: str) -> Counter:
    """The number at `path`, 0 where there was none."""
    for _ in range(ATTEMPTS_MAX):
        (found,) = await coordination.get_many([path])
        if found is None:
            with suppress(NodeExists, OutcomeUnknown):  # the next reading tells
                await coordination.transact((Create(path, b"0"),))
            continue
        try:
            return Counter(path, int(found.value), found.version)
        except ValueError as error:
            raise CoordinationError(f"{path} is {found.value!r}, not a number") from error
    raise CoordinationUnavailable(f"{path} was not made in {ATTEMPTS_MAX} attempts")
