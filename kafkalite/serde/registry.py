"""The schema registry: its state (`registry_state`), and the records a request would append.  [P]

A decision is an answer and a list of records. Who asked appends them and reads them back; where one
of them does not count, since another writer was faster, it is decided again.

Owns   the rules: which schema may become a version, which version may go, in which mode.
Never  writes, or changes the state: `replay` does, with what the log holds.
Fails  with SchemaError and Confluent's error code; without one when a schema is none.
Source confluentinc/schema-registry `KafkaSchemaRegistry`, `Errors` (what is refused, and in which
       order). Not theirs: schemas are always normalised, so two spellings are one schema; a deleted
       version keeps its place when its schema comes back; a rule set is refused, not dropped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import orjson

from kafkalite.errors import SchemaError
from kafkalite.serde import registry_records as records
from kafkalite.serde.avro_resolve import comparing
from kafkalite.serde.avro_schema import Schema, parse_schema
from kafkalite.serde.avro_text import rendered
from kafkalite.serde.compatibility import Compatibility, complaints
from kafkalite.serde.registry_contexts import (
    EVERYWHERE,
    Place,
    context_of,
    name_in_context,
    qualified,
)
from kafkalite.serde.registry_records import (
    AVRO,
    IDS,
    JSON,
    VERSIONS,
    Draft,
    Record,
    Reference,
    RegisteredSchema,
)
from kafkalite.serde.registry_state import (
    IMPORT,
    LATEST,
    MODES,
    READ_ONLY,
    READ_WRITE,
    SUBJECT_NOT_FOUND,
    RegistryState,
)

__all__ = ["LATEST", "SCHEMAS_TOPIC", "Draft", "MemoryRegistry", "Record", "RegisteredSchema",
           "Registration", "Registry", "SchemaRegistry"]  # fmt: skip

SCHEMAS_TOPIC: Final = "_schemas"
SCHEMA_TYPES: Final = (JSON, AVRO)
COMPLAINTS_SHOWN: Final = 3
COMPARED_CHARS_MAX: Final = 16_000_000  # of older versions: a million take a third of a second
CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
RESERVED_SUBJECTS: Final = frozenset({"__GLOBAL", "__EMPTY"})

SUBJECT_SOFT_DELETED: Final = 40404
SUBJECT_NOT_SOFT_DELETED: Final = 40405
VERSION_SOFT_DELETED: Final = 40406
VERSION_NOT_SOFT_DELETED: Final = 40407
INCOMPATIBLE: Final = 409
INVALID_SCHEMA: Final = 42201
INVALID_MODE: Final = 42204
NOT_PERMITTED: Final = 42205
REFERENCE_EXISTS: Final = 42206
INVALID_SUBJECT: Final = 42208
SCHEMA_TOO_LARGE: Final = 42209
INVALID_RULE_SET: Final = 42210


@dataclass(frozen=True, slots=True)
class Registration:
    """The version that a schema is; once `records` are appended, if any, it is."""

    entry: RegisteredSchema
    records: tuple[Record, ...] = ()

    @property
    def id(self) -> int:
        """The schema's id."""
        return self.entry.id

    @property
    def version(self) -> int:
        """The schema's version in the subject."""
        return self.entry.version


class SchemaRegistry(Protocol):
    """The interface of a registry. Blocking; SchemaError for an unknown or refused schema."""

    def schema(self, id: int) -> str:  # noqa: A002 - Confluent's word
        """The text of the schema with this id, deleted or not."""

    def latest(self, subject: str) -> RegisteredSchema:
        """The subject's newest version that is not deleted, as a text without references."""

    def versions(self, subject: str) -> tuple[int, ...]:
        """The subject's versions that are not deleted; none for an unknown subject."""

    def register(self, subject: str, schema: object) -> int:
        """The id of the schema (JSON text or values), which the subject now has."""

    def check(self, subject: str, schema: object) -> tuple[str, ...]:
        """Why the subject would refuse the schema as its next version; empty when it would not."""


class Registry(RegistryState):
    """The state, and the decisions on it. A `schema` is a Draft, or Avro as text or JSON values."""

    # --- schemas -------------------------------------------------------------------------

    def lookup(
        self, subject: str, schema: object, *, deleted: bool = False
    ) -> RegisteredSchema | None:
        """The subject's newest version that is this schema. SchemaError when it is no schema."""
        draft = self.normal(schema, subject)
        return self._same(subject, draft, deleted=deleted) or (
            self._same(subject, self._inheriting(subject, draft), deleted=deleted)
        )

    def check(self, subject: str, schema: object, version: int | None = None) -> tuple[str, ...]:
        """Why the subject would refuse the schema as its next version; empty when it would not.

        With a `version`, only that one counts. SchemaError when it is no schema, or one whose
        compatibility cannot be told.
        """
        draft = self.normal(schema, subject)
        older = self.entries(subject) if version is None else [self.version(subject, version)]
        return self._complaints(subject, draft, older)

    def register(
        self,
        subject: str,
        schema: object,
        *,
        id: int | None = None,  # noqa: A002
        version: int | None = None,
    ) -> Registration:
        """The records that make `schema` a version of `subject`; none if it is one already.

        `id`, and with it any `version`, may be given in mode IMPORT. SchemaError when it is no
        schema, the subject's mode or compatibility level refuses it, or the id is another's.
        """
        if not name_in_context(subject) or f":{context_of(subject)}:" == EVERYWHERE:
            raise SchemaError(f"{subject!r} cannot be a subject", code=INVALID_SUBJECT)
        _check_name(subject)
        draft, mode = self.normal(schema, subject), self.mode(subject)
        if mode != IMPORT:
            draft = self._same_or_inheriting(subject, draft)
        held = self._held(subject, draft, id, version)
        if held is not None:
            return Registration(held)
        self._check_mode(subject, mode, has_id=id is not None)
        self.referenced(subject, draft.references, deleted=False)  # a new one needs living ones
        if mode != IMPORT:
            reasons = self._complaints(subject, draft, self.entries(subject))
            if reasons:
                raise SchemaError(
                    _refusal(subject, self.compatibility(subject), reasons), code=INCOMPATIBLE
                )
        entry = self._next(subject, draft, id, version, mode)
        context = context_of(subject)
        known = () if context in self._contexts else (records.context_record(context),)
        return Registration(entry, (*known, records.schema_record(entry)))

    def normal(self, schema: object, subject: str = "") -> Draft:
        """A schema as a subject stores it. SchemaError when it is none.

        Deleted versions serve as references here: it may be an old schema.
        """
        if not isinstance(schema, Draft):
            schema = Draft(schema if isinstance(schema, str) else parse_schema(schema).text)
        if schema.rule_set is not None:
            raise SchemaError("rule sets are not supported", code=INVALID_RULE_SET)
        if not schema.text.strip():
            raise SchemaError("Empty schema", code=INVALID_SCHEMA)
        references = tuple(
            self._settled(reference, subject) if reference.version == LATEST else reference
            for reference in schema.references
        )
        texts = self.referenced(subject, references, deleted=True)
        if schema.schema_type == AVRO:
            text = rendered(parse_schema(schema.text, texts), texts)
        elif schema.schema_type == JSON:
            text = _json_schema(schema.text)
        else:
            known = " and ".join(SCHEMA_TYPES)
            raise SchemaError(
                f"schema type {schema.schema_type} is not supported, {known} are",
                code=INVALID_SCHEMA,
            )
        return replace(schema, text=text, references=references)

    def _settled(self, reference: Reference, subject: str) -> Reference:
        """A reference to the latest version, as one to the version that this is now."""
        latest = self.find(qualified(context_of(subject), reference.subject), LATEST)
        return reference if latest is None else replace(reference, version=latest.version)

    def _same(
        self, subject: str, draft: Draft, *, deleted: bool = False
    ) -> RegisteredSchema | None:
        identity, known = draft.identity, self.ids_of(subject).identities
        entries = reversed(self.entries(subject, deleted=deleted))
        return next((entry for entry in entries if known[entry.id] == identity), None)

    def _inheriting(self, subject: str, draft: Draft) -> Draft:
        """The schema with the latest version's metadata, unless it brings its own."""
        latest = self.find(subject, LATEST)
        if latest is None or draft.metadata is not None:
            return draft
        return replace(draft, metadata=latest.metadata)

    def _same_or_inheriting(self, subject: str, draft: Draft) -> Draft:
        return draft if self._same(subject, draft) else self._inheriting(subject, draft)

    def _held(
        self,
        subject: str,
        draft: Draft,
        id: int | None,  # noqa: A002
        version: int | None,
    ) -> RegisteredSchema | None:
        """The version that is this schema already, with this id and number if they are asked."""
        identity, known = draft.identity, self.ids_of(subject).identities
        for entry in reversed(self.entries(subject)):
            if (
                known[entry.id] == identity
                and id in (None, entry.id)
                and version in (None, entry.version)
            ):
                return entry
        return None

    def _check_mode(self, subject: str, mode: str, *, has_id: bool) -> None:
        self._refuse_when_read_only(subject)
        wanted = IMPORT if has_id else READ_WRITE
        if mode != wanted:
            raise SchemaError(
                f"subject {subject!r} is in mode {mode}; a schema "
                f"{'with' if has_id else 'without'} an id needs {wanted}",
                code=NOT_PERMITTED,
            )

    def _complaints(
        self, subject: str, draft: Draft, older: Sequence[RegisteredSchema]
    ) -> tuple[str, ...]:
        """Why a schema may not follow others of its subject, given in ascending order."""
        level = self.compatibility(subject)
        if level is Compatibility.NONE:
            return ()
        counted = older if level.transitive else older[-1:]
        if draft.schema_type != AVRO and any(e.schema_type == draft.schema_type for e in counted):
            raise SchemaError(
                f"compatibility of {draft.schema_type} schemas is not supported: subject "
                f"{subject!r} takes no second one at level {level.name}, at level NONE it does",
                code=NOT_PERMITTED,
            )
        _check_length(subject, counted)
        found: list[str] = []
        schemas: dict[int, Schema] = {}
        for entry in reversed(counted):
            if entry.schema_type != draft.schema_type:
                types = f"{entry.schema_type}, not {draft.schema_type}"
                found.append(f"version {entry.version}: its schema is {types}")
                continue
            try:
                schemas[entry.version] = self.schema_of(entry)
            except SchemaError as error:
                found.append(f"version {entry.version} cannot be read: {error}")
        if schemas:
            what = f"the schema with {len(schemas)} versions of subject {subject!r}"
            work = comparing(what, code=SCHEMA_TOO_LARGE)
            found += complaints(level, self.parsed(subject, draft), schemas, work)
        return tuple(found)

    def _next(
        self,
        subject: str,
        draft: Draft,
        id: int | None,  # noqa: A002
        version: int | None,
        mode: str,
    ) -> RegisteredSchema:
        """The version that the schema becomes."""
        held = self._subjects.get(subject, {})
        following = max(held, default=0) + 1
        place = following if version is None else version
        if place not in VERSIONS or (mode != IMPORT and place != following):
            raise SchemaError(
                f"subject {subject!r}: version {place} was asked for, {following} comes next",
                code=INVALID_SCHEMA,
            )
        ids, identity = self.ids_of(subject), draft.identity
        known = ids.of_identity.get(identity) or {ids.greatest + 1}
        number = min(known) if id is None else id
        if number not in IDS:
            raise SchemaError(
                f"schema id {number} is none, {IDS[-1]} is the last", code=INVALID_SCHEMA
            )
        if ids.identities.get(number, identity) != identity:
            raise SchemaError(f"schema id {number} is another schema's", code=NOT_PERMITTED)
        if place in held and held[place].id != number:
            raise SchemaError(
                f"subject {subject!r} version {place} is schema id {held[place].id}, not {number}",
                code=NOT_PERMITTED,
            )
        return RegisteredSchema(
            subject,
            place,
            number,
            draft.text,
            schema_type=draft.schema_type,
            references=draft.references,
            metadata=draft.metadata,
        )

    # --- deletions -----------------------------------------------------------------------

    def delete_version(
        self, subject: str, version: int, *, permanent: bool = False
    ) -> tuple[Record, ...]:
        """Hides a version, or forgets a hidden one for good. SchemaError in the wrong order.

        LATEST is the newest one that is not hidden. With a subject's last version go its config
        and its mode.
        """
        if subject not in self._subjects:
            raise SchemaError(
                f"subject {subject!r} is not known to the schema registry", code=SUBJECT_NOT_FOUND
            )
        entry = self.version(subject, version)
        if entry.deleted and not permanent:
            raise SchemaError(
                f"Subject '{subject}' Version {entry.version} was soft deleted. "
                "Set permanent=true to delete permanently",
                code=VERSION_SOFT_DELETED,
            )
        self._refuse_when_read_only(subject)
        if not permanent:
            self._refuse_when_referenced(entry, self.referrers(*_place(entry)))
            return (records.schema_record(replace(entry, deleted=True)),)
        gone = self._ended_by([entry])
        if not entry.deleted:
            raise SchemaError(
                f"Subject '{subject}' Version {entry.version} was not deleted first "
                "before being permanently deleted",
                code=VERSION_NOT_SOFT_DELETED,
            )
        is_last = len(self._subjects[subject]) == 1
        return (*gone, *(self._unset(subject) if is_last else ()))

    def delete_subject(self, subject: str, *, permanent: bool = False) -> tuple[Record, ...]:
        """Hides all versions of a subject, or forgets the hidden ones for good."""
        entries = self.entries(subject, deleted=permanent)
        if subject not in self._subjects:
            raise SchemaError(
                f"subject {subject!r} is not known to the schema registry", code=SUBJECT_NOT_FOUND
            )
        if not entries:
            raise SchemaError(
                f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently",
                code=SUBJECT_SOFT_DELETED,
            )
        self._refuse_when_read_only(subject)
        if not permanent:
            for entry in entries:
                referrers = self.referrers(*_place(entry))
                self._refuse_when_referenced(entry, [r for r in referrers if r.subject != subject])
            return (records.delete_subject_record(subject, entries[-1].version),)
        gone = self._ended_by(entries)
        if not all(entry.deleted for entry in entries):
            raise SchemaError(
                f"Subject '{subject}' was not deleted first before being permanently deleted",
                code=SUBJECT_NOT_SOFT_DELETED,
            )
        return (*gone, *self._unset(subject))

    def _ended_by(self, entries: Sequence[RegisteredSchema]) -> tuple[Record, ...]:
        """The tombstones of versions, those first that refer to others: only then do they count.

        SchemaError when something else refers to one.
        """
        left = {_place(entry): entry for entry in entries}
        gone: dict[Place, Record] = {}
        while left:
            free = [place for place in left if self._referrers.get(place, set()) <= gone.keys()]
            if not free:
                blocked = [
                    (e, r) for e in left.values() for r in self.referrers(*_place(e), deleted=True)
                ]
                entry, referrer = min(blocked, key=lambda pair: _place(pair[1]) in left)
                self._refuse_when_referenced(entry, [referrer])
            for place in free:
                gone[place] = records.tombstone(*place)
                del left[place]
        return tuple(gone.values())

    def _refuse_when_referenced(
        self, entry: RegisteredSchema, referrers: Sequence[RegisteredSchema]
    ) -> None:
        if referrers:
            first = referrers[0]
            raise SchemaError(
                f"subject {entry.subject!r} version {entry.version} is referred to by "
                f"{first.subject!r} version {first.version}",
                code=REFERENCE_EXISTS,
            )

    def _unset(self, subject: str) -> tuple[Record, ...]:
        """The records that end a subject's own config and mode."""
        mode = (records.mode_record(subject, None),) if subject in self._modes else ()
        config = (records.config_record(subject, None),) if subject in self._configs else ()
        return (*mode, *config)

    # --- configs and modes ---------------------------------------------------------------

    def set_compatibility(
        self, level: Compatibility, subject: str | None = None
    ) -> tuple[Record, ...]:
        """Sets a subject's level, or that of all that have none of their own."""
        return self.set_config({"compatibilityLevel": level.name}, subject)

    def set_config(
        self, changes: Mapping[str, Any], subject: str | None = None
    ) -> tuple[Record, ...]:
        """Changes a subject's config, or that of all; a None takes a setting back."""
        _check_name(subject)
        self._refuse_when_read_only(subject)
        merged = {**(self.config(subject) or {}), **changes}
        config = {name: value for name, value in merged.items() if value is not None}
        return (records.config_record(subject, config),)

    def delete_config(self, subject: str | None = None) -> tuple[Record, ...]:
        """Ends a subject's own config, or that of all. SchemaError when a subject has none."""
        if subject is not None and subject not in self._configs:
            raise SchemaError(f"subject {subject!r} has no config", code=SUBJECT_NOT_FOUND)
        self._refuse_when_read_only(subject)
        return (records.config_record(subject, None),)

    def set_mode(
        self, mode: str, subject: str | None = None, *, force: bool = False
    ) -> tuple[Record, ...]:
        """Sets a subject's mode, or that of all.

        For IMPORT, unless it is forced, there may be no versions but deleted ones, which go.
        """
        if mode not in MODES:
            known = ", ".join(sorted(MODES))
            raise SchemaError(f"mode {mode!r} is not supported, {known} are", code=INVALID_MODE)
        _check_name(subject)
        is_new = mode == IMPORT and self.mode(subject) != IMPORT and not force
        cleared = self._cleared(subject) if is_new else ()
        return (*cleared, records.mode_record(subject, mode))

    def _cleared(self, subject: str | None) -> tuple[Record, ...]:
        """The records that remove all deleted versions. SchemaError if there are others."""
        names = (
            [subject]
            if subject is not None and name_in_context(subject)
            else [name for name in sorted(self._subjects) if name.startswith(subject or "")]
        )
        entries = [entry for name in names for entry in self.entries(name, deleted=True)]
        if any(not entry.deleted for entry in entries):
            raise SchemaError("mode IMPORT: there are subjects already", code=NOT_PERMITTED)
        return (*self._ended_by(entries), records.clear_subject_record(subject))

    def delete_mode(self, subject: str | None = None) -> tuple[Record, ...]:
        """Ends a subject's own mode, or that of all. SchemaError when a subject has none."""
        if subject is not None and subject not in self._modes:
            raise SchemaError(f"subject {subject!r} has no mode", code=SUBJECT_NOT_FOUND)
        return (records.mode_record(subject, None),)

    def _refuse_when_read_only(self, subject: str | None) -> None:
        mode = self.mode(subject)
        if mode in READ_ONLY:
            what = "the schema registry" if subject is None else f"subject {subject!r}"
            raise SchemaError(f"{what} is in mode {mode}", code=NOT_PERMITTED)


class MemoryRegistry:
    """A registry without a log, for tests and the topology test driver: decides and replays."""

    def __init__(self) -> None:
        self.registry = Registry()

    def schema(self, id: int) -> str:  # noqa: A002
        """The text of the schema with this id."""
        return self.registry.by_id(id)

    def latest(self, subject: str) -> RegisteredSchema:
        """The subject's newest version."""
        return self.registry.without_references(self.registry.latest(subject))

    def versions(self, subject: str) -> tuple[int, ...]:
        """The subject's versions."""
        return self.registry.versions(subject)

    def register(self, subject: str, schema: object) -> int:
        """The id of the schema, which the subject now has."""
        registration = self.registry.register(subject, schema)
        self.append(registration.records)
        return registration.id

    def check(self, subject: str, schema: object) -> tuple[str, ...]:
        """Why the subject would refuse the schema; empty when it would not."""
        return self.registry.check(subject, schema)

    def append(self, decided: Sequence[Record]) -> None:
        """Replays what a decision of `registry` would append to the log."""
        for key, value in decided:
            self.registry.replay(key, value)


def _check_name(subject: str | None) -> None:
    """SchemaError when nothing can be called so, neither a subject nor a context."""
    if subject and (name_in_context(subject) in RESERVED_SUBJECTS or CONTROL.search(subject)):
        raise SchemaError(f"{subject!r} cannot be a subject", code=INVALID_SUBJECT)


def _check_length(subject: str, older: Sequence[RegisteredSchema]) -> None:
    """SchemaError when the versions are too long to be compared with within one request."""
    chars = sum(len(entry.text) for entry in older)
    if chars > COMPARED_CHARS_MAX:
        raise SchemaError(
            f"subject {subject!r} has {len(older)} versions of {chars:,} characters to compare the "
            f"schema with, {COMPARED_CHARS_MAX:,} are possible",
            code=SCHEMA_TOO_LARGE,
        )


def _place(entry: RegisteredSchema) -> Place:
    return entry.subject, entry.version


def _json_schema(text: str) -> str:
    """A JSON Schema without white space. Its meaning is not checked."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise SchemaError(f"the JSON schema is not JSON: {error}", code=INVALID_SCHEMA) from None
    if not isinstance(value, dict | bool):
        raise SchemaError("a JSON schema is an object or a boolean", code=INVALID_SCHEMA)
    return orjson.dumps(value).decode()


def _refusal(subject: str, level: Compatibility, reasons: Sequence[str]) -> str:
    shown = "; ".join(reasons[:COMPLAINTS_SHOWN])
    more = len(reasons) - COMPLAINTS_SHOWN
    return (
        f"subject {subject!r}: not {level.name} compatible with {shown}"
        f"{f'; and {more} more' if more > 0 else ''}"
    )
