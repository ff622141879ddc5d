"""Names of operators: given, or derived from the operator and its place.                  [P]

A derived name is the path that leads to the operator, so it stays while the topology up to there
is unchanged, whatever is added elsewhere. Operators that change the key or may own a store or an
internal topic are anchors: the path to an anchor names only the anchors above it, so that an
operator without state can come and go between them.

    flights                              app.stream("flights")               an anchor
    flights-map                              .map(…)
    flights-group_by                         .group_by(…)                    an anchor
    flights-map-2                        a second .map(…) of the same stream

Stores and internal topics are called by the names of anchors, which is why those must not move.
Anchors of one kind below one anchor differ in their number only, so in the order in which they
were made; `numbered` lists them.

Fails  with TopologyError for a name given twice and for one that no topic could have.
"""

from __future__ import annotations

import re
from typing import Final
from zlib import crc32

from kafkalite.errors import TopologyError

LEGAL: Final = re.compile(r"[A-Za-z0-9._-]+")
TOPIC_NAME_CHARS_MAX: Final = 249
DERIVED_CHARS_MAX: Final = 80  # longer paths are cut to a hash of themselves


class Names:
    """The names of one topology."""

    def __init__(self) -> None:
        self._given: set[str] = set()
        self._derived: dict[str, int] = {}  # path -> how many operators had it

    def give(self, name: str, operator: str) -> str:
        """The name that a user chose."""
        check_name(name, operator)
        if name in self._given:
            raise TopologyError(f"{operator}: another operator is called {name!r} already")
        self._given.add(name)
        return name

    def derive(self, operator: str, above: str | None) -> str:
        """A name from the operator and the name of what it stands on."""
        path = f"{above}-{operator}" if above else operator
        path = LEGAL_ONLY.sub("_", path)
        if len(path) > DERIVED_CHARS_MAX:
            path = f"{operator}-{crc32(path.encode()):08x}"
        self._derived[path] = number = self._derived.get(path, 0) + 1
        return _numbered(path, number)

    def is_given(self, name: str) -> bool:
        """Whether a user chose `name`."""
        return name in self._given

    def numbered(self) -> tuple[tuple[str, ...], ...]:
        """The derived names that differ in their number only, those of each path together."""
        return tuple(
            tuple(_numbered(path, number) for number in range(1, count + 1))
            for path, count in self._derived.items()
            if count > 1
        )


def _numbered(path: str, number: int) -> str:
    return path if number == 1 else f"{path}-{number}"


LEGAL_ONLY: Final = re.compile(r"[^A-Za-z0-9._-]+")


def check_name(name: object, what: str) -> str:
    """`name` if a topic's name may contain it. TopologyError otherwise."""
    if isinstance(name, str) and LEGAL.fullmatch(name) and len(name) <= TOPIC_NAME_CHARS_MAX:
        return name
    raise TopologyError(
        f"{what}: expected at most {TOPIC_NAME_CHARS_MAX} letters, digits, '.', '_' and '-', "
        f"got {name!r}"
    )


def internal_name(application_id: str, name: str, suffix: str) -> str:
    """`<application.id>-<name>-changelog` or `-repartition`."""
    return f"{application_id}-{name}-{suffix}"
