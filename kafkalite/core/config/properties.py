"""The text of a Java `.properties` file as pairs, each with the line where it stands.       [P]

    # comment   ! comment
    name=value   name: value   name value       blanks around the separator do not count
    name=long \\
         value                                  a backslash at the end continues a line

Source `java.util.Properties.load`. Every text is readable: a line without a separator is a name
         with an empty value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_NAME: Final = re.compile(r"(?:\\.|[^\\=:\s])*", re.DOTALL)
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Property(NamedTuple):
    """One pair; `line` is the number of its first line, `text` what stands there."""

    name: str
    value: str
    line: int
    text: str


def parse_properties(text: str) -> dict[str, str]:
    """The pairs; if two have one name, the last counts."""
    return {found.name: found.value for found in properties(text)}


def properties(text: str) -> Iterator[Property]:
    """Every pair, in the order of the text."""
    for number, line in _logical_lines(text):
        found = _NAME.match(line)
        assert found is not None
        rest = re.sub(r"\A\s*[=:]?\s*", "", line[found.end() :])
        yield Property(_unescape(found.group()), _unescape(rest).strip(), number, line.rstrip())


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments and blanks; an odd number of trailing backslashes continues one."""
    pending, first = "", 0
    for number, raw in enumerate([*re.split(r"\r\n|\r|\n", text), ""], 1):
        line = raw.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        first = first if pending else number
        backslashes = len(line) - len(line.rstrip("\\"))
        pending += line[:-1] if backslashes % 2 else line
        if backslashes % 2 == 0:
            yield first, pending
            pending = ""


def _unescape(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        digits, letter = found.groups()
        return chr(int(digits, 16)) if digits else _ESCAPES.get(letter, letter)

    return re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.))", one, text, flags=re.DOTALL)
