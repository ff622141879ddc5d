"""Spark's Python processes: what the collector of garbage need not look at.                [IO]

Spark's daemon keeps its processes for the next task, and collects all garbage after each. With the
modules of a reader and a writer a collection takes 40 ms, and a micro-batch of four tasks has ten.
Modules stay until the process ends, so they are frozen once they are imported.

Owns   the frozen objects of a process that `pyspark.daemon` has started; nothing in any other.
Fails  never.
"""

from __future__ import annotations

import gc
import sys
from typing import Final

DAEMON: Final = "pyspark.daemon"


class _Frozen:
    """How many modules there were when objects were frozen."""

    modules = 0


def freeze_modules() -> None:
    """Freezes what is imported, unless nothing was imported since. Call it before there is work,
    as whatever is alive then stays.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == DAEMON and len(sys.modules) > _Frozen.modules:
        _Frozen.modules = len(sys.modules)
        gc.freeze()
