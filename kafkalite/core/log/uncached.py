"""Reads of a log's files that must not wait for the disk.                                  [D]

    with cached_only():    each read in this block raises `ColdRead` instead of waiting
        log.read(...)
    ColdRead.warm()        brings the bytes into the cache; a thread calls it, then the caller
                           tries again

Owns   whether the reads of the present task may wait. They may, unless a block says otherwise.
Never  reads. A storage that cannot ask the cache never raises `ColdRead`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

must_be_cached: Final[ContextVar[bool]] = ContextVar("must_be_cached", default=False)


class ColdRead(Exception):
    """A read would have waited for the disk. `warm` waits for it instead."""

    def __init__(self, warm: Callable[[], None]) -> None:
        super().__init__("the bytes are not cached")
        self.warm: Final = warm


@contextmanager
def cached_only(wanted: bool = True) -> Iterator[None]:
    """Within this block, and this thread, reads of logs do not wait. False: they do again."""
    token = must_be_cached.set(wanted)
    try:
        yield
    finally:
        must_be_cached.reset(token)
