"""Whose line it was: the user's file and line behind an operator or an error.             [P]

Of an error it is the innermost frame of the user's own code; functions in C, and fields that are
taken out of values, have none, so there it is the line that made the operator.

Owns   what counts as the user's code: all but this package, the standard library and what is
       installed beside it.
"""

from __future__ import annotations

import sys
import sysconfig
from types import CodeType, FrameType
from typing import Final

PACKAGE: Final = __file__.rpartition("/streams/")[0] + "/"
INSTALLED: Final = ("/site-packages/", "/dist-packages/")
STDLIB: Final = tuple({path + "/" for name, path in sysconfig.get_paths().items() if "lib" in name})


def line_of(error: BaseException) -> str | None:
    """`app.py:12` where the user's code failed; None where it was not in a frame of it."""
    found = None
    trace = error.__traceback__
    while trace is not None:
        if _is_users(trace.tb_frame.f_code):
            found = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def line_of_caller() -> str:
    """`app.py:12` of the user's call that we are in; empty where nobody's code called."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_users(frame.f_code):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_users(code: CodeType) -> bool:
    name = code.co_filename
    if name.startswith((PACKAGE, "<frozen", *STDLIB)):
        return False
    return not any(installed in name for installed in INSTALLED)
