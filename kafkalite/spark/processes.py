"""Spark's Python processes: what the collector skips, and how errors look.                  [IO]

Spark's daemon keeps its processes for the next task, and collects all garbage after each. With the
modules of a reader and a writer a collection takes 40 ms, and a micro-batch of four tasks has ten.
Modules stay until the process ends, so they are frozen once they are imported.

An error ends its process, and Spark shows it with a traceback of our code, which says nothing to
users. Ours have a line that does.

Owns   the frozen objects of a process that `pyspark.daemon` has started, and SPARK_HIDE_TRACEBACK
       in a process of Spark that is about to end; nothing in any other.
Fails  never.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kafkalite.errors import KafkaliteError

DAEMON: Final = "pyspark.daemon"


class _Frozen:
    """How many modules there were when objects were frozen."""

    modules = 0


def freeze_modules() -> None:
    """Freezes what is imported, unless nothing was imported since. Call it before there is work,
    as whatever is alive then stays.
    """
    if _main_module() == DAEMON and len(sys.modules) > _Frozen.modules:
        _Frozen.modules = len(sys.modules)
        gc.freeze()


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Spark shows an error of ours that is raised here without a traceback."""
    try:
        yield
    except KafkaliteError:
        if _main_module().startswith("pyspark."):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # Spark reads it, then the process ends
        raise


def _main_module() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return "" if spec is None else str(spec.name)
