"""Kinds shared by the native modules of JSON and MessagePack and by their Python code.        [P]

Owns   the kinds of columns, and the number that is raised when one of them changes.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

INTERFACE: Final = 3  # raised with INTERFACE_BUILT in the _json_*.pyx and _msgpack_*.pyx


class Kind(Enum):
    """The values of a column. The native modules count them in this order."""

    NULL = "null in every row"
    INT = "int64; written of int32, too"
    FLOAT = "double; in JSON written as orjson prints it"
    BOOL = "true or false"
    TEXT = "UTF-8"
    OBJECT = "an object whose fields are columns"
    LIST = "a list whose items are rows of a column"
