"""Whether a log can be written, and if not, the reason and which parts can still be read.  [P]

    (well) ──fail──> failed, to be opened again        memory and disk may differ
           ──fail──> failed for good                   a sync failed: the files' state is unknown
           ──close─> closed

Owns   the first reason, in words, for operators and clients.
Fails  with StorageError at the failure itself, with ApiError KAFKA_STORAGE_ERROR afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn

from kafkalite.core.types import TopicPartition
from kafkalite.errors import ApiError, ErrorCode, StorageError

EVERYTHING: Final = 1 << 63  # beyond any offset


class Health:
    """The health of the log of `partition`."""

    __slots__ = (
        "_is_hidden",
        "_partition",
        "can_reopen",
        "failure",
        "is_final",
        "on_change",
        "readable_end",
        "refuses",
    )

    def __init__(self, partition: TopicPartition) -> None:
        self._partition = partition
        self.failure: str | None = None
        self.readable_end = EVERYTHING  # below it the log is what it was
        self.can_reopen = False  # a fresh look at the disk may mend it
        self.is_final = False  # a sync failed: the disk may lack what was appended
        self.refuses = False  # the disk took an append back, as when it is full; the log is whole
        self._is_hidden = False  # nothing is read, as its files may be changing
        self.on_change: Callable[[], object] = _nothing  # called when readers see something else

    def fail(
        self, what: str, error: OSError, *, readable_end: int = EVERYTHING, is_final: bool = False
    ) -> NoReturn:
        """Nothing can be appended any more: memory and disk may differ, from `readable_end` on."""
        self.failure = f"{self._partition}: {what}: {error}"
        self.readable_end = readable_end
        self.can_reopen = not is_final
        self.is_final = is_final
        self.on_change()
        raise StorageError(self.failure) from error

    def close(self, *, hide: bool = False) -> None:
        """Nothing is appended any more, nor read if `hide`."""
        self._is_hidden = hide
        self.failure = self.failure or f"{self._partition}: closed"
        self.on_change()

    def check(self) -> None:
        """Refuses to go on with a log that is not well."""
        if self.failure is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, self.failure)

    def check_read(self, offset: int) -> None:
        """Refuses to read what may not be on the disk."""
        if offset >= self.readable_end or self._is_hidden:
            self.check()


def _nothing() -> None:
    """The default listener: does nothing."""


def refuse(error: Exception) -> NoReturn:
    """Raises the error about the disk that clients get."""
    raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
