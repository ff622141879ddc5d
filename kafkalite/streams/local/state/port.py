"""What a task asks of its stores, whatever their rows are laid out like.                     [P]

Owns   the port alone: `store` (a row per key, or key and window), `ordered` and `segments`
       keep its promises.
"""

from __future__ import annotations

from typing import Any, Protocol

from kafkalite.core.types import Columns
from kafkalite.streams.local.state.kept import Kept


class TaskStore(Protocol):
    """A store of a task."""

    name: str
    changelog_topic: str
    kept: Kept

    @property
    def note(self) -> bytes | None:
        """What the operator wants to find again after a restart besides rows."""

    @note.setter
    def note(self, note: bytes) -> None: ...

    def restore(self, columns: Columns) -> None:
        """Takes rows back as the changelog tells; SerdeError, with the index, for no row."""

    def settle(self) -> None:
        """The restore is over, for now: what it has left becomes rows to look at."""

    def changelog(self) -> Columns | None:
        """What changed since the last call; None for nothing. SerdeError: a row is not written."""

    def checkpoint(self, offset: int | None, now_ms: int) -> None:
        """The commit of everything that `changelog` gave so far went through."""

    @property
    def object_bytes(self) -> int:
        """About how many bytes the rows take that are objects."""

    def shrink(self, bytes_max: int) -> None:
        """Lets go of rows that are on disk as they are here, until the rest fits."""

    def view(self) -> Any:
        """The store as users look into it. TopologyError where they cannot."""
