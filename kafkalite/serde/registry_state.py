"""The schema registry's state: a fold of the topic `_schemas`.                              [P]

A subject has versions 1, 2, …. An id names one schema in all subjects of a context, and a schema
has one id in all of them. The id of a deleted version still works, because data may have been
written with it.

Several writers share the topic without a leader. Each writer decides from its own fold and appends
records. The order in the log settles conflicts: **the first record that claims a (subject, version)
or an id wins, and later claims that differ are ignored.** All folds of one log are equal, so a
writer that reads its own record back knows whether it won. A loser decides again.

The topic is compacted, and compaction keeps the *last* record of a key. An ignored record must
therefore not remain the last of its key. `repairs()` returns records that correct this, and the
next writer appends them first, within the topic's compaction lag of a day.

References are resolved when they are needed, not when a record is read, because compaction may
leave a record ahead of the one that it refers to. The log's order also settles a registration
against the removal of a schema that it refers to: **a tombstone is ignored if its version is not
deleted or if other versions refer to it; a new version that refers to a removed one is invalid**.
The invalid version exists, because it is in the log, and its repair is its tombstone.

Owns   subjects, versions, ids, references, configs, modes. `replay` is the only writer.
Never  decides (`registry` does), reads a log or writes one.
Fails  with SchemaError naming subject, version or id. `replay` skips unreadable records and says
       so. A schema that does not parse keeps its place and its id; asking for it is an error.
Source confluentinc/schema-registry `KafkaStoreMessageHandler`, `InMemoryCache` (what is stored and
       why a second schema with the same id is ignored); the rule for several writers is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson

from kafkalite.errors import SchemaError
from kafkalite.serde import registry_contexts as contexts
from kafkalite.serde import registry_records as records
from kafkalite.serde.avro_schema import Schema, parse_schema
from kafkalite.serde.avro_text import self_contained
from kafkalite.serde.compatibility import Compatibility
from kafkalite.serde.registry_contexts import Ids, Place
from kafkalite.serde.registry_records import (
    AVRO,
    Draft,
    Identity,
    Record,
    Reference,
    RegisteredSchema,
)
from kafkalite.serde.work import Work

LATEST: Final = -1
DEFAULT_LEVEL: Final = Compatibility.BACKWARD
READ_WRITE: Final = "READWRITE"
IMPORT: Final = "IMPORT"
READ_ONLY: Final = frozenset({"READONLY", "READONLY_OVERRIDE"})
MODES: Final = frozenset({READ_WRITE, IMPORT}) | READ_ONLY
REFERENCE_DEPTH_MAX: Final = 64
REFERENCES_FOLLOWED_MAX: Final = 10_000  # all that a schema and those that it refers to have
REFERENCED_CHARS_MAX: Final = 4_000_000  # a million take a third of a second to parse

SUBJECT_NOT_FOUND: Final = 40401
VERSION_NOT_FOUND: Final = 40402
SCHEMA_NOT_FOUND: Final = 40403


def _following() -> Work:
    return Work(
        REFERENCES_FOLLOWED_MAX, "following the references of the schema", unit="references"
    )


def _reading() -> Work:
    return Work(REFERENCED_CHARS_MAX, "reading what the schema refers to", unit="characters")


@dataclass(slots=True)
class _Collected:
    """The references of a schema, as far as they were followed."""

    deleted: bool  # deleted versions serve, too
    texts: dict[Place, str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    following: Work = field(default_factory=_following)
    reading: Work = field(default_factory=_reading)


class RegistryState:
    """The state of the registry, folded from the topic."""

    def __init__(self) -> None:
        self._subjects: dict[str, dict[int, RegisteredSchema]] = {}
        self._contexts = {contexts.DEFAULT}
        self._ids: dict[str, Ids] = {}  # by context
        self._referrers: dict[Place, set[Place]] = {}
        self._configs: dict[str | None, dict[str, Any]] = {}
        self._modes: dict[str | None, str] = {}
        self._repairs: dict[bytes, Place] = {}
        self._deleted_to: dict[str, int] = {}  # what the last DELETE_SUBJECT of a subject says
        self._ended: set[Place] = set()  # versions that were seen here, and their tombstones

    # --- subjects and versions ----------------------------------------------------------

    def subjects(self, *, deleted: bool = False) -> tuple[str, ...]:
        """All subjects with a version that is not deleted; with `deleted`, also the others."""
        return tuple(sorted(name for name in self._subjects if self.entries(name, deleted=deleted)))

    def entries(self, subject: str, *, deleted: bool = False) -> list[RegisteredSchema]:
        """The subject's versions, ascending; with `deleted`, also the deleted ones."""
        held = self._subjects.get(subject, {})
        return [held[version] for version in sorted(held) if deleted or not held[version].deleted]

    def versions(self, subject: str) -> tuple[int, ...]:
        """The numbers of the subject's versions that are not deleted, ascending."""
        return tuple(entry.version for entry in self.entries(subject))

    def find(self, subject: str, version: int) -> RegisteredSchema | None:
        """One version, also a deleted one; LATEST is the newest that is not deleted."""
        if version == LATEST:
            return next(reversed(self.entries(subject)), None)
        return self._subjects.get(subject, {}).get(version)

    def version(self, subject: str, version: int) -> RegisteredSchema:
        """One version, also a deleted one. SchemaError when there is none."""
        entry = self.find(subject, version)
        if entry is None:
            raise SchemaError(
                f"subject {subject!r} has no version {version}", code=VERSION_NOT_FOUND
            )
        return entry

    def latest(self, subject: str) -> RegisteredSchema:
        """The newest version that is not deleted. SchemaError when there is none."""
        entry = self.find(subject, LATEST)
        if entry is None:
            raise SchemaError(
                f"subject {subject!r} is not known to the schema registry", code=SUBJECT_NOT_FOUND
            )
        return entry

    @property
    def subject_count(self) -> int:
        """How many subjects there are, those with deleted versions alone included."""
        return len(self._subjects)

    @property
    def schema_count(self) -> int:
        """How many ids there are, in all contexts."""
        return sum(len(ids.identities) for ids in self._ids.values())

    # --- ids and contexts ----------------------------------------------------------------

    def contexts(self) -> tuple[str, ...]:
        """All contexts that have or had a subject, the default one first."""
        return (contexts.DEFAULT, *sorted(self._contexts - {contexts.DEFAULT}))

    def in_contexts(self, subject: str) -> tuple[str, ...]:
        """A subject, and if it names no context also those of its name in the other contexts."""
        if contexts.context_of(subject) != contexts.DEFAULT:
            return (subject,)
        return tuple(contexts.qualified(context, subject) for context in self.contexts())

    def ids_of(self, subject: str | None) -> Ids:
        """The ids of a subject's context; None is in the default one."""
        context = contexts.DEFAULT if subject is None else contexts.context_of(subject)
        return self._ids.get(context) or Ids()

    def find_id(self, id: int, subject: str | None = None) -> RegisteredSchema | None:  # noqa: A002
        """A version that has this id: the subject's newest if it has one, else any of its context.

        A subject of that name in another context is better than another one in the default context.
        """
        for scope in () if subject is None else self.in_contexts(subject):
            own = [p for p in self.ids_of(scope).places.get(id, ()) if p[0] == scope]
            if own:
                return self._at(max(own))
        places = self.ids_of(subject).places.get(id)
        return None if places is None else self._at(min(places))

    def has_id(self, id: int) -> bool:  # noqa: A002 - Confluent's word
        """Whether a schema of the default context has this id."""
        return id in self.ids_of(None).identities

    def by_id(self, id: int) -> str:  # noqa: A002
        """The Avro text of the schema with this id, which needs no references.

        SchemaError when there is none or it is not Avro.
        """
        entry = self.find_id(id)
        if entry is None:
            raise SchemaError(
                f"schema id {id} is not known to the schema registry", code=SCHEMA_NOT_FOUND
            )
        return self.without_references(entry).text

    def of_guid(self, guid: str) -> dict[str, RegisteredSchema]:
        """A version whose schema has this hash, by context."""
        found = ((name, self._ids[name].of_guid.get(guid)) for name in sorted(self._ids))
        return {name: self._at(min(places)) for name, places in found if places}

    def places(self, entry: RegisteredSchema, *, deleted: bool = False) -> list[Place]:
        """The versions that have the id of this one."""
        found = sorted(self.ids_of(entry.subject).places[entry.id])
        return [place for place in found if deleted or not self._at(place).deleted]

    def _at(self, place: Place) -> RegisteredSchema:
        return self._subjects[place[0]][place[1]]

    # --- references ----------------------------------------------------------------------

    def referrers(
        self, subject: str, version: int, *, deleted: bool = False
    ) -> list[RegisteredSchema]:
        """The versions whose schemas refer to a version; with `deleted`, also the deleted ones."""
        found = (self._subjects[s][v] for s, v in self._referrers.get((subject, version), ()))
        kept = [entry for entry in found if deleted or not entry.deleted]
        return sorted(kept, key=lambda entry: (entry.subject, entry.version))

    def referenced(
        self, subject: str, references: Iterable[Reference], *, deleted: bool
    ) -> tuple[str, ...]:
        """The texts of all references of a subject's schema, each after its own references.

        With `deleted`, deleted versions serve too. SchemaError when there is none. What has a name
        or a place that is in already is left out.
        """
        collected = _Collected(deleted=deleted)
        self._collect(subject, references, collected, REFERENCE_DEPTH_MAX)
        return tuple(collected.texts.values())

    def _collect(
        self, subject: str, references: Iterable[Reference], into: _Collected, depth: int
    ) -> None:
        if not depth:
            raise SchemaError(f"references are nested more than {REFERENCE_DEPTH_MAX} deep")
        for reference in references:
            into.following.take()
            entry = self.find(*_referred_to(subject, reference))
            if entry is None or (entry.deleted and not into.deleted):
                raise SchemaError(
                    f"reference {reference.name!r}: subject {reference.subject!r} "
                    f"has no version {reference.version}"
                )
            place = entry.subject, entry.version
            if reference.name not in into.names and place not in into.texts:
                into.names.add(reference.name)
                self._collect(entry.subject, entry.references, into, depth - 1)
                into.reading.take(len(entry.text))
                into.texts[place] = entry.text

    def schema_of(self, entry: RegisteredSchema) -> Schema:
        """The parsed Avro schema of a version, with the types that it refers to."""
        return self.parsed(entry.subject, entry.draft, what=f"schema id {entry.id}")

    def parsed(self, subject: str, draft: Draft, *, what: str = "the schema") -> Schema:
        """An Avro schema of a subject with the types that it refers to. SchemaError: it is none."""
        if draft.schema_type != AVRO:
            raise SchemaError(f"{what} is {draft.schema_type}, not Avro")
        return parse_schema(draft.text, self.referenced(subject, draft.references, deleted=True))

    def without_references(self, entry: RegisteredSchema) -> RegisteredSchema:
        """The same Avro schema as a canonical text that needs no references."""
        return replace(entry, text=self_contained(self.schema_of(entry)), references=())

    # --- configs and modes ----------------------------------------------------------------

    def config(self, subject: str | None = None) -> Mapping[str, Any] | None:
        """The setting of a subject, a context, or (None) of all; None if there is none."""
        return self._configs.get(subject)

    def wider_config(self, subject: str | None = None) -> Mapping[str, Any]:
        """The setting of the nearest scope around a subject that has one."""
        scopes = (self._configs.get(scope) for scope in contexts.wider_scopes(subject))
        return next((config for config in scopes if config is not None), {})

    def compatibility(self, subject: str | None = None) -> Compatibility:
        """The level of a subject: its own, else that of its context, else BACKWARD."""
        for config in (self._configs.get(subject) or {}, self.wider_config(subject)):
            if "compatibilityLevel" in config:
                return Compatibility[config["compatibilityLevel"]]
        return DEFAULT_LEVEL

    def own_mode(self, subject: str | None = None) -> str | None:
        """The mode that is set for a subject, a context, or (None) for all."""
        return self._modes.get(subject)

    def mode(self, subject: str | None = None) -> str:
        """The mode of a subject: its own, else that of its context, else READWRITE."""
        scopes = (subject, *contexts.wider_scopes(subject))
        return next((self._modes[s] for s in scopes if s in self._modes), READ_WRITE)

    def repairs(self) -> tuple[Record, ...]:
        """Records to append so that every key's last record is what this fold holds of it."""
        return tuple((key, self._repaired(place)) for key, place in self._repairs.items())

    def _repaired(self, place: Place) -> bytes | None:
        held = self.find(*place)
        return None if held is None or self._falls(held) else records.schema_record(held)[1]

    def _falls(self, held: RegisteredSchema) -> bool:
        """Whether a living version came after the end of a version that it refers to."""
        return not held.deleted and self._may_end(held)

    def _may_end(self, held: RegisteredSchema) -> bool:
        """Whether a tombstone of this version counts."""
        if self._referrers.get((held.subject, held.version)):
            return False
        return held.deleted or any(
            _referred_to(held.subject, reference) in self._ended for reference in held.references
        )

    # --- the fold ----------------------------------------------------------------------

    def replay(self, key: bytes | None, value: bytes | None) -> bool:
        """Takes one record of the topic. False: it does not count, as it lost or is unreadable."""
        try:
            fields, content = orjson.loads(key or b""), value and orjson.loads(value)
        except (orjson.JSONDecodeError, UnicodeDecodeError):
            return False
        match fields:
            case {"keytype": "SCHEMA", "subject": str(subject), "version": int(version)}:
                assert key is not None
                return self._replay_schema(key, subject, version, content)
            case {"keytype": "DELETE_SUBJECT"}:
                return self._replay_delete(content)
            case {"keytype": "CONFIG"} if isinstance(fields.get("subject"), str | None):
                return self._replay_config(fields.get("subject"), content)
            case {"keytype": "MODE"} if isinstance(fields.get("subject"), str | None):
                return self._replay_mode(fields.get("subject"), content)
            case {"keytype": "CONTEXT", "context": str(context)}:
                self._contexts.add(context)
                return True
            case {"keytype": "NOOP" | "CLEAR_SUBJECT"}:
                return True
        return False

    def _replay_schema(self, key: bytes, subject: str, version: int, content: Any) -> bool:
        held = self._subjects.get(subject, {}).get(version)
        if content is None:
            return self._replay_tombstone(key, held, (subject, version))
        claim = records.claim(content)
        if claim is None or (claim.subject, claim.version) != (subject, version):
            return False
        identity = claim.draft.identity
        id_is_taken = self.ids_of(subject).identities.get(claim.id, identity) != identity
        if id_is_taken or (held is not None and held.id != claim.id):
            self._repairs[key] = (subject, version)
            return False
        self._put(claim, identity)
        if self._falls(claim):
            self._repairs[key] = (subject, version)
            return False
        self._repairs.pop(key, None)
        return True

    def _replay_tombstone(self, key: bytes, held: RegisteredSchema | None, place: Place) -> bool:
        if held is not None and not self._may_end(held):
            self._repairs[key] = place
            return False
        self._repairs.pop(key, None)
        if held is not None:
            self._drop(held)
        return True

    def _put(self, claim: RegisteredSchema, identity: Identity) -> None:
        place = claim.subject, claim.version
        held = self.find(*place)
        if held is not None:
            self._drop(held)
        self._ended.discard(place)
        self._subjects.setdefault(claim.subject, {})[claim.version] = claim
        context = contexts.context_of(claim.subject)
        self._contexts.add(context)
        self._ids.setdefault(context, Ids()).put(claim, identity)
        for reference in claim.references:
            self._referrers.setdefault(_referred_to(claim.subject, reference), set()).add(place)

    def _drop(self, held: RegisteredSchema) -> None:
        """Forgets a version, and its id when no other version has it."""
        self._ended.add((held.subject, held.version))
        del self._subjects[held.subject][held.version]
        if not self._subjects[held.subject]:
            del self._subjects[held.subject]
        for reference in held.references:
            referrers = self._referrers.get(_referred_to(held.subject, reference), set())
            referrers.discard((held.subject, held.version))
        self.ids_of(held.subject).drop(held)

    def _replay_delete(self, content: Any) -> bool:
        match content:
            case {"subject": str(subject), "version": int(last)}:
                return self._delete_to(subject, last)
        return content is None

    def _delete_to(self, subject: str, last: int) -> bool:
        """Versions up to `last` are deleted.

        Those that the record before deleted, and this one does not, must say so themselves: of the
        two records compaction keeps this one. Nobody writes it who has read the other.
        """
        held, before = self._subjects.get(subject, {}), self._deleted_to.get(subject, 0)
        self._deleted_to[subject] = last
        counts = last >= before
        for version, entry in held.items():
            if version <= last:
                counts |= not entry.deleted
                held[version] = replace(entry, deleted=True)
            elif version <= before and entry.deleted:
                self._repairs[records.schema_key(subject, version)] = (subject, version)
        return counts

    def _replay_config(self, subject: str | None, content: Any) -> bool:
        match content:
            case None:
                self._configs.pop(subject, None)
                return True
            case dict() if content.get("compatibilityLevel") in (None, *Compatibility.__members__):
                own = {k: v for k, v in content.items() if k != "subject" and v is not None}
                self._configs[subject] = own
                return True
        return False

    def _replay_mode(self, subject: str | None, content: Any) -> bool:
        match content:
            case None:
                self._modes.pop(subject, None)
                return True
            case {"mode": str(name)}:
                self._modes[subject] = name
                return True
        return False


def _referred_to(subject: str, reference: Reference) -> Place:
    """The version that a schema of a subject refers to."""
    context = contexts.context_of(subject)
    return contexts.qualified(context, reference.subject), reference.version
