"""How seldom Python looks for cycles while its process is a worker's.                      [IO]

A batch makes thousands of dicts, which are gone when their batch is. By default Python looks at
them all after every 700 new ones, and finds no cycle: over JSON and Avro that took an eighth of a
worker's CPU.

Owns   the collector's settings of this process, from the beginning of the block to its end.
Never  switches collecting off: cycles of a user's functions are found after some thousands more.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

YOUNG_OBJECTS: Final = 50_000  # some ten megabytes of dicts


@contextmanager
def collecting_seldom() -> Iterator[None]:
    """Collections wait for many young objects, and pass over what is there now.

    Someone who has switched collecting off, or made it as seldom, is left alone.
    """
    young, middle, old = before = gc.get_threshold()
    if not gc.isenabled() or young == 0 or young >= YOUNG_OBJECTS:
        yield
        return
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, middle, old)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
