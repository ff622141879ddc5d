"""A value as a message shows it.                                                          [P]"""

from __future__ import annotations


def glimpse(value: object, length_max: int = 80) -> str:
    """A value's repr, cut to fit a line."""
    text = repr(value)
    return text if len(text) <= length_max else f"{text[: length_max - 1]}…"
