"""Which known name a misspelt one probably means.                                         [P]

    did_you_mean("ordrs", ["orders", "payments"])   "; did you mean 'orders'?"

Owns   nothing. Compares names by difflib's ratio, without regard to capitals.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

SIMILAR: Final = 0.7  # of difflib's ratio: `order` and `orders` have 0.91, `cat` and `cart` 0.86
NAMES_MAX: Final = 10_000  # compared; a cluster may have very many topics


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like `name`; None where no known name is similar."""
    by_lower = {other.lower(): other for other, _ in zip(known, range(NAMES_MAX), strict=False)}
    found = get_close_matches(name.lower(), by_lower, n=1, cutoff=SIMILAR)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name; empty where no known name is similar."""
    found = nearest(name, known)
    return "" if found is None else f"; did you mean '{found}'?"
