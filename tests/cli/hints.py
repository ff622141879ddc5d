"""What a command says first where no native code was built, and no test of another thing expects.

Of a log as a whole, `without_hint(log)`; of one that is read, `filter(without_hint, lines)`.
"""

from __future__ import annotations

import re

from kafkalite.compaction import loops
from kafkalite.core.protocol import record_codec

HINT = re.compile(r"^.*\bno native .* here: pure Python does its work, slower.*\n", re.MULTILINE)


def without_hint(log: str) -> str:
    """The log without the line, which nobody may say where native code is there."""
    return log if record_codec.NATIVE and loops.NATIVE else HINT.sub("", log)
