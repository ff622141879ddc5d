"""The levels of this process's loggers, read and changed while it runs.                    [IO]

    Kafka's words   TRACE  DEBUG   INFO   WARN      ERROR   FATAL
    Python's        DEBUG          INFO   WARNING   ERROR   CRITICAL

A level set so lasts until the process ends, as in Kafka.

Fails  with ApiError, in Kafka's code and words.
Source KIP-412; apache/kafka `LoggingController`, `ConfigAdminManager`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from kafkalite.core.cluster.config_changes import ConfigChange
from kafkalite.core.protocol.configs import ConfigOperation
from kafkalite.errors import ApiError, ErrorCode

ROOT: Final = "root"
LEVELS: Final = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_WORDS: Final = {number: word for word, number in LEVELS.items()}


class Loggers:
    """All loggers that there are; none is made by asking for it."""

    def levels(self) -> dict[str, str]:
        """The level in force of every logger, by name."""
        found = {ROOT: logging.root} | {
            name: logger
            for name, logger in logging.root.manager.loggerDict.items()
            if isinstance(logger, logging.Logger)
        }
        return {name: _word(found[name].getEffectiveLevel()) for name in sorted(found)}

    def change(self, change: ConfigChange, *, validate_only: bool = False) -> None:
        """Sets levels, or deletes them so that the logger above decides. All or none; ApiError."""
        self._check(change.operations)
        if validate_only:
            return
        for name, operation, value in change.operations:
            logger = logging.root if name == ROOT else logging.getLogger(name)
            deleted = operation == ConfigOperation.DELETE or value is None
            logger.setLevel(logging.NOTSET if deleted else LEVELS[value or ""])

    def _check(self, operations: Sequence[tuple[str, int, str | None]]) -> None:
        known = self.levels()
        for name, operation, value in operations:
            if name not in known:
                raise ApiError(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
            if operation == ConfigOperation.SET and value not in LEVELS:
                words = (
                    f"Cannot set the log level of {name} to {value} as it is not a supported log "
                    f"level. Valid log levels are {', '.join(LEVELS)}"
                )
                raise ApiError(ErrorCode.INVALID_CONFIG, words)
            if operation == ConfigOperation.DELETE and name == ROOT:
                words = f"Removing the log level of the {ROOT} logger is not allowed"
                raise ApiError(ErrorCode.INVALID_REQUEST, words)
            if operation not in (ConfigOperation.SET, ConfigOperation.DELETE):
                what = ConfigOperation(operation).name
                words = f"{what} operation is not allowed for the BROKER_LOGGER resource"
                raise ApiError(ErrorCode.INVALID_REQUEST, words)


def _word(number: int) -> str:
    """Kafka's word for a level of Python's, that of the next louder one for one in between."""
    louder = [level for level in _WORDS if level >= number]
    return _WORDS[min(louder)] if louder else "FATAL"
