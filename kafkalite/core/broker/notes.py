"""Lines for the operator, without the repetitions that retrying clients would cause.       [IO]

Owns   the messages of the last seconds, a bounded number.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from kafkalite.errors import ApiError, ErrorCode

log: Final = logging.getLogger(__name__)

AGAIN_MS: Final = 10_000  # the same message is told once in this time
NOTES_MAX: Final = 1_000


class Notes:
    """The messages of one broker."""

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._now_ms = monotonic_ms
        self._noted_ms: dict[str, int] = {}

    def note(self, message: str) -> None:
        """Logs a line for the operator, unless the same line was just logged."""
        now_ms = self._now_ms()
        if self._noted_ms.get(message, -AGAIN_MS) + AGAIN_MS <= now_ms:
            if len(self._noted_ms) >= NOTES_MAX:
                self._noted_ms.clear()
            self._noted_ms[message] = now_ms
            log.warning("%s", message)

    def note_storage_error(self, error: ApiError) -> None:
        """Logs a client's error for the operator, if it concerns our disk."""
        if error.error_code is ErrorCode.KAFKA_STORAGE_ERROR:
            self.note(str(error))
