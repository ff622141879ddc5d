"""Identities: the names under which workers come back to their group.                    [IO]

    <state_dir>/<application.id>/worker-1     a random id; locked while a worker has it
                                 worker-2     of the second worker that shares the directory

A worker takes the first identity that no other process has. A lock goes with its process, so a
worker that was killed leaves its identity to its successor, which is then the same static member.

Owns   these files. An identity that cannot be read is replaced by a new one.
Fails  with TopologyError where the directory cannot be written. Beyond `IDENTITIES_MAX` workers of
       one directory there are no identities: those workers are dynamic members.
Source KIP-345.
"""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path
from random import Random
from typing import Final

from kafkalite.errors import TopologyError

IDENTITIES_MAX: Final = 256
ID_BYTES: Final = 16
ID: Final = re.compile(rb"[0-9a-f]{%d}" % (2 * ID_BYTES))


class Identity:
    """An id that is this process' until it is closed."""

    def __init__(self, name: str, lock: int) -> None:
        self.name = name
        self._lock: int | None = lock

    def close(self) -> None:
        """Leaves the id to the next process."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def take_identity(directory: Path, random: Random) -> Identity | None:
    """The first identity in `directory` that nobody has; it is made where there is none."""
    for number in range(1, IDENTITIES_MAX + 1):
        path = directory / f"worker-{number}"
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            reason = error.strerror or str(error)
            raise TopologyError(f"state_dir: {path} cannot be used: {reason}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            continue
        return Identity(_read_or_make(lock, random), lock)
    return None


def _read_or_make(lock: int, random: Random) -> str:
    found = os.pread(lock, 2 * ID_BYTES, 0)
    if not ID.fullmatch(found):
        found = b"%0*x" % (2 * ID_BYTES, random.getrandbits(8 * ID_BYTES))
        os.ftruncate(lock, 0)
        os.pwrite(lock, found + b"\n", 0)
    return found.decode()
