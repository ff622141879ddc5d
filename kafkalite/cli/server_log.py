"""The log of a server on stderr: its levels, and its lines as text or as JSON.              [IO]

    text   2026-05-01T12:00:00.000Z INFO kafkalite.node: listening on …
    json   {"ts": "2026-05-01T12:00:00.000Z", "level": "INFO", "logger": …, "message": …,
           "error": the traceback, where there is one}

In JSON every line of stderr is one object, including warnings, errors of threads and the error that
ends the program. Times are UTC.

Owns   the root logger's handler, and the levels from the flags.
Fails  with typer.BadParameter for an unknown level.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from types import TracebackType
from typing import Annotated, Final

import typer

from kafkalite.errors import KafkaliteError

log: Final = logging.getLogger(__name__)

LEVELS: Final[Mapping[str, int]] = {
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "CRITICAL": logging.CRITICAL,
}
SAME_LEVELS: Final = {"TRACE": "DEBUG", "WARN": "WARNING", "FATAL": "CRITICAL"}  # Kafka's words
ROOT: Final = ""
TEXT: Final = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s"
SECONDS: Final = "%Y-%m-%dT%H:%M:%S"


class LogFormat(Enum):
    """How an event is written."""

    TEXT = "text"
    JSON = "json"


LogLevels = Annotated[
    list[str] | None,
    typer.Option(
        "--log-level",
        help="LEVEL, or LOGGER=LEVEL for one logger and those below it; may be repeated. DEBUG, "
        "INFO, WARNING, ERROR or CRITICAL.",
        show_default="INFO",
    ),
]
LogForm = Annotated[
    LogFormat, typer.Option("--log-format", help="text, or json: one object a line.")
]


def parse_levels(given: Iterable[str] | None) -> dict[str, int]:
    """The levels by logger, ROOT's among them; the last one given for a logger counts."""
    levels = {ROOT: logging.INFO}
    for text in given or ():
        logger, equals, word = text.rpartition("=")
        capitals = word.strip().upper()
        level = LEVELS.get(SAME_LEVELS.get(capitals, capitals))
        if level is None or (equals and not logger.strip()):
            words = f"'{text}': expected LEVEL or LOGGER=LEVEL, a level is {', '.join(LEVELS)}"
            raise typer.BadParameter(words, param_hint="--log-level")
        levels["" if logger.strip() == "root" else logger.strip()] = level
    return levels


def log_to_stderr(
    form: LogFormat = LogFormat.TEXT, levels: Mapping[str, int] | None = None
) -> None:
    """From now on every event is a line on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = JsonLines() if form is LogFormat.JSON else logging.Formatter(TEXT, SECONDS)
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler])
    for name, level in (levels or parse_levels(())).items():
        logging.getLogger(name or None).setLevel(level)
    logging.captureWarnings(True)
    if form is LogFormat.JSON:
        threading.excepthook = _of_thread
        sys.unraisablehook = _unraisable


@contextmanager
def last_words(form: LogFormat) -> Iterator[None]:
    """Logs a fatal error as a line of JSON. With text logs, and for wrong flags, the error passes
    through."""
    try:
        yield
    except typer.BadParameter:
        raise
    except Exception as error:
        if form is LogFormat.TEXT:
            raise
        is_told = isinstance(error, KafkaliteError | OSError)
        words = str(error) if is_told else "ended by an unexpected error"
        log.critical("%s", words, exc_info=None if is_told else error)
        raise typer.Exit(1) from error


class JsonLines(logging.Formatter):
    """An event as a JSON object, without a line break inside."""

    def format(self, record: logging.LogRecord) -> str:
        """The object's text: escapes stand for line breaks, and for text that is no UTF-8."""
        entry = {
            "ts": f"{self.formatTime(record, SECONDS)}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[0] is not None:
            entry["error"] = "".join(traceback.format_exception(*record.exc_info)).rstrip()
        return json.dumps(entry)


def _of_thread(failed: threading.ExceptHookArgs) -> None:
    name = "?" if failed.thread is None else failed.thread.name
    log.error("the thread %s ended", name, exc_info=_exc_info(failed.exc_value))


def _unraisable(failed: sys.UnraisableHookArgs) -> None:
    words = failed.err_msg or "an error where none can be raised"
    log.error("%s: %r", words, failed.object, exc_info=_exc_info(failed.exc_value))


def _exc_info(
    error: BaseException | None,
) -> tuple[type[BaseException], BaseException, TracebackType | None] | None:
    return None if error is None else (type(error), error, error.__traceback__)
