"""Recovers our error from the text of a traceback in Spark's exception.                  [P]

Spark runs our source and our writer in other processes. If one of them fails, Spark raises an
exception of its own, whose message is the traceback. This module makes our error of it again.

Owns   nothing.
Fails  with the original error if it was ours, else with Spark's exception.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.errors import PySparkException

from kafkalite import errors
from kafkalite.errors import KafkaliteError, StorageError

OURS: Final = re.compile(r"^kafkalite\.errors\.(\w+): (.*)$", re.MULTILINE)
OF_THE_SYSTEM: Final = re.compile(r"^\w+Error: \[Errno \d+\] (.*)$", re.MULTILINE)


@contextmanager
def our_failures(place: str) -> Iterator[None]:
    """Raises what our code raised in Spark's workers as it was raised there; `place` is where the
    system may refuse to write.
    """
    try:
        yield
    except PySparkException as error:
        found = failure_in(str(error), place)
        if found is None:
            raise
        raise found from error


def failure_in(text: str, place: str) -> KafkaliteError | None:
    """The error that a traceback ends with, if it is ours or the system's (a full disk, say)."""
    if told := OURS.findall(text):
        name, message = told[-1]
        kind = getattr(errors, name)
        return KafkaliteError(message) if issubclass(kind, errors.ApiError) else kind(message)
    if told := OF_THE_SYSTEM.findall(text):
        return StorageError(f"{place}: {told[-1]}")
    return None
