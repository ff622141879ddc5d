"""Recovers our error from the text of a traceback in Spark's exception.                  [P]

Spark runs our source and our writer in other processes. If one of them fails, Spark raises an
exception of its own, whose message is the traceback. This module makes our error of it again.

Owns   nothing.
Fails  with the original error if it was ours, else with the first line of Spark's exception.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from kafkalite import errors
from kafkalite.errors import KafkaliteError, StorageError

OURS: Final = re.compile(r"(?:^|: )kafkalite\.errors\.(\w+): (.*)$", re.MULTILINE)
OF_THE_SYSTEM: Final = re.compile(r"^\w+Error: \[Errno \d+\] (.*)$", re.MULTILINE)


@contextmanager
def our_failures(place: str) -> Iterator[None]:
    """Raises what our code raised in Spark's workers as it was raised there; `place` is where the
    system may refuse to write. A failure of Spark itself becomes one line.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = str(error)
        raise failure_in(text, place) or KafkaliteError(f"Spark: {_first_line(text)}") from error


def failure_in(text: str, place: str) -> KafkaliteError | None:
    """The error that a traceback ends with, if it is ours or the system's (a full disk, say)."""
    if told := OURS.findall(text):
        name, message = told[-1]
        kind = getattr(errors, name)
        return KafkaliteError(message) if issubclass(kind, errors.ApiError) else kind(message)
    if told := OF_THE_SYSTEM.findall(text):
        return StorageError(f"{place}: {told[-1]}")
    return None


def _first_line(text: str) -> str:
    """What failed. The first line of a Java exception says only which call of ours met it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no message"]
    is_java = lines[0].startswith("An error occurred while calling")
    return lines[1].removeprefix(": ") if is_java and len(lines) > 1 else lines[0]
