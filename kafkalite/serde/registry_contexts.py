"""Contexts: subjects apart from all others, with ids of their own.                        [P]

    s           in the default context, `.`
    :.:s        the same
    :.c:s       in the context `.c`
    :.c:        the context itself, whose config and mode its subjects have

What a schema in a context refers to is looked for there, unless the reference names another one.

Owns   the names, and one context's ids.
Never  looks at a schema.
Source confluentinc/schema-registry `QualifiedSubject`, `InMemoryCache`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from kafkalite.serde.registry_records import Identity, RegisteredSchema

DEFAULT: Final = "."
DEFAULT_PREFIX: Final = ":.:"
EVERYWHERE: Final = ":.__GLOBAL:"  # whose config and mode all contexts have that lack their own

Place: TypeAlias = tuple[str, int]  # subject, version


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
    """Whose config and mode count where a subject has none: the nearest first."""
    context = DEFAULT if subject is None else context_of(subject)
    return (None if context == DEFAULT else f":{context}:", EVERYWHERE)


@dataclass(slots=True)
class Ids:
    """The ids of one context, and the versions that have them."""

    identities: dict[int, Identity] = field(default_factory=dict)
    of_identity: dict[Identity, int] = field(default_factory=dict)
    of_guid: dict[str, int] = field(default_factory=dict)
    places: dict[int, set[Place]] = field(default_factory=dict)
    greatest: int = 0

    def put(self, claim: RegisteredSchema, identity: Identity) -> None:
        """A version has its id from now on."""
        self.identities[claim.id] = identity
        self.of_identity.setdefault(identity, claim.id)
        self.of_guid[claim.draft.guid] = claim.id
        self.places.setdefault(claim.id, set()).add((claim.subject, claim.version))
        self.greatest = max(self.greatest, claim.id)

    def drop(self, held: RegisteredSchema) -> None:
        """A version is gone, and its id when no other version has it."""
        self.places[held.id].discard((held.subject, held.version))
        if self.places[held.id]:
            return
        del self.places[held.id]
        identity = self.identities.pop(held.id)
        if self.of_identity[identity] == held.id:
            del self.of_identity[identity]
        if self.of_guid.get(held.draft.guid) == held.id:
            del self.of_guid[held.draft.guid]
