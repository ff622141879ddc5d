"""A cache of values that were parsed from texts.                                          [P]

Parsing a schema of one megabyte creates a dozen megabytes of small objects. The garbage collector
visits them again and again while the rest of the process waits. So this cache limits not only the
number of its values, as `lru_cache` does, but also the total length of their texts.

Owns   the values. Any thread may use it; two threads that ask for one text may both parse it.
Fails  as the function does. Errors are not cached.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Final, TypeVar

T = TypeVar("T")

RESULTS_MAX: Final = 512
CHARS_MAX: Final = 1_000_000


def cached_by_text(function: Callable[..., T]) -> Callable[..., T]:
    """A function of texts that remembers its last results."""
    kept: dict[tuple[str, ...], tuple[T, int]] = {}  # what was asked for last stands last

    @wraps(function)
    def cached(*texts: str) -> T:
        found = kept.pop(texts, None)
        if found is not None:
            kept[texts] = found
            return found[0]
        result, length = function(*texts), sum(map(len, texts))
        if length <= CHARS_MAX:
            kept[texts] = result, length
            _forget_the_oldest(kept)
        return result

    return cached


def _forget_the_oldest(kept: dict[tuple[str, ...], tuple[T, int]]) -> None:
    held = list(kept.copy().items())  # of a copy, made in one step: others may ask meanwhile
    too_many = len(held) - RESULTS_MAX
    too_long = sum([length for _, (_, length) in held]) - CHARS_MAX
    for texts, (_, length) in held:
        if too_many <= 0 and too_long <= 0:
            return
        kept.pop(texts, None)
        too_many, too_long = too_many - 1, too_long - length
