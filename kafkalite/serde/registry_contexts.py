"""Contexts: groups of subjects, each with ids of its own.                                  [P]

    s           in the default context, `.`
    :.:s        the same
    :.c:s       in the context `.c`
    :.c:        the context itself; its config and mode apply to its subjects

References of a schema are looked up in its own context, unless they name another context.

Owns   the names of contexts, and the ids of one context.
Never  looks at a schema.
Source confluentinc/schema-registry `QualifiedSubject`, `InMemoryCache`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

from kafkalite.serde.registry_records import Identity, RegisteredSchema

DEFAULT: Final = "."
DEFAULT_PREFIX: Final = ":.:"
EVERYWHERE: Final = ":.__GLOBAL:"  # whose config and mode all contexts have that lack their own

Place: TypeAlias = tuple[str, int]  # subject, version
K = TypeVar("K")
V = TypeVar("V")


def context_of(subject: str) -> str:
    """The context that a subject is in."""
    if subject.startswith(":."):
        name, colon, _ = subject[1:].partition(":")
        if colon:
            return name
    return DEFAULT


def name_in_context(subject: str) -> str:
    """A subject's name without its context; empty for a context itself."""
    return subject if context_of(subject) == DEFAULT else subject[1:].partition(":")[2]


def plain(subject: str) -> str:
    """A subject's name as it is kept: the default context goes without saying."""
    return subject.removeprefix(DEFAULT_PREFIX)


def qualified(context: str, subject: str) -> str:
    """A subject that is mentioned in a context."""
    if subject.startswith(":.") or context == DEFAULT:
        return plain(subject)
    return f":{context}:{subject}"


def wider_scopes(subject: str | None) -> tuple[str | None, ...]:
    """The scopes that give config and mode to a subject without its own, nearest first."""
    context = DEFAULT if subject is None else context_of(subject)
    return (None if context == DEFAULT else f":{context}:", EVERYWHERE)


@dataclass(slots=True)
class Ids:
    """The ids of one context, and the versions that have them.

    A schema has one id; in mode IMPORT it may get several. Versions with the same id may be
    written differently, and then have different guids.
    """

    identities: dict[int, Identity] = field(default_factory=dict)
    of_identity: dict[Identity, set[int]] = field(default_factory=dict)
    of_guid: dict[str, set[Place]] = field(default_factory=dict)
    places: dict[int, set[Place]] = field(default_factory=dict)
    greatest: int = 0

    def put(self, claim: RegisteredSchema, identity: Identity) -> None:
        """A version has its id from now on."""
        place = claim.subject, claim.version
        self.identities[claim.id] = identity
        self.of_identity.setdefault(identity, set()).add(claim.id)
        self.of_guid.setdefault(claim.draft.guid, set()).add(place)
        self.places.setdefault(claim.id, set()).add(place)
        self.greatest = max(self.greatest, claim.id)

    def drop(self, held: RegisteredSchema) -> None:
        """A version is gone, and its id when no other version has it."""
        place = held.subject, held.version
        _discard(self.of_guid, held.draft.guid, place)
        _discard(self.places, held.id, place)
        if held.id not in self.places:
            _discard(self.of_identity, self.identities.pop(held.id), held.id)


def _discard(sets: dict[K, set[V]], key: K, value: V) -> None:
    """Takes a value out of one of several sets; none is left empty."""
    sets[key].discard(value)
    if not sets[key]:
        del sets[key]
