"""What was made of texts, kept for the next time.                                         [P]

A parser makes a dozen megabytes of small objects of a schema of one megabyte, and the garbage
collector looks at them again and again while everything else in the process waits. So the number of
results is bounded, as with `lru_cache`, and so is the length of all their texts together.

Owns   the results. Any thread may ask; two that ask for one text at once may both do the work.
Fails  as the function does, each time anew.
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
    kept: dict[tuple[str, ...], T] = {}  # what was asked for last stands last

    @wraps(function)
    def cached(*texts: str) -> T:
        try:
            result = kept[texts] = kept.pop(texts)
        except KeyError:
            result = kept[texts] = function(*texts)
            _forget_the_oldest(kept)
        return result

    return cached


def _forget_the_oldest(kept: dict[tuple[str, ...], T]) -> None:
    count = chars = 0
    for texts in reversed(list(kept)):
        length = sum(map(len, texts))
        if count < RESULTS_MAX and chars + length <= CHARS_MAX:
            count += 1
            chars += length
        else:
            kept.pop(texts, None)
