"""The schema registry: a fold of the topic `_schemas`, in Confluent's record format.      [P]

    {"keytype":"SCHEMA","subject":"s","version":1,"magic":1}
        {"subject":"s","version":1,"id":7,"schema":"…","deleted":false}
        null                                                    gone for good
    {"keytype":"DELETE_SUBJECT","subject":"s","magic":0}
        {"subject":"s","version":3}                             versions up to 3 are deleted
    {"keytype":"CONFIG","subject":"s" or null,"magic":0}        null: for all subjects
        {"compatibilityLevel":"FULL"}
    {"keytype":"MODE","subject":"s" or null,"magic":0}
        {"mode":"READONLY"}

A subject has versions 1, 2, …; an id names a schema in all subjects, the same schema has the same
id everywhere. A deleted version still answers to its id, since data may be written with it.

Several writers share the topic without a leader. Each decides from its own fold and appends; what
then counts is the order in the log: **the first record that claims a (subject, version) or an id
wins, later claims that differ are ignored.** Every fold of one log is the same, so a writer that
reads its own record back knows whether it won; a loser decides again from what it now knows.

The topic is compacted, which keeps the *last* record of a key. So an ignored record must not stay
the last of its key: `repairs()` gives the records that put this right, and whoever registers next
appends them first. A tombstone of a version that is not deleted is ignored and repaired likewise.
A compaction lag of a day is the time in which that has to happen.

Owns   subjects, versions, ids, compatibility levels. `replay` is the only writer.
Never  reads a log or writes one: a decision is a list of records to append.
Fails  with SchemaError naming subject, version or id. Records it cannot read are skipped (`replay`
       says so); schemas of other types than Avro keep their ids and are refused when asked for.
Source confluentinc/schema-registry `KafkaStoreMessageHandler`, `InMemoryCache` (what is stored and
       why a second schema with the same id is ignored); the rule for several writers is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeAlias

import orjson

from kafkalite.errors import SchemaError
from kafkalite.serde.avro_schema import Schema, parse_schema
from kafkalite.serde.compatibility import Compatibility, complaints

SCHEMAS_TOPIC: Final = "_schemas"
AVRO: Final = "AVRO"
DEFAULT_LEVEL: Final = Compatibility.BACKWARD
COMPLAINTS_SHOWN: Final = 3

Record: TypeAlias = tuple[bytes, bytes | None]
Identity: TypeAlias = tuple[str, str]  # schema type, canonical text


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """One version of a subject. `text` is the schema as it was registered."""

    subject: str
    version: int
    id: int
    text: str
    deleted: bool = False
    schema_type: str = AVRO

    @property
    def schema(self) -> Schema:
        """The parsed schema. SchemaError for other types than Avro."""
        if self.schema_type != AVRO:
            raise SchemaError(f"schema id {self.id} is {self.schema_type}, not Avro")
        return parse_schema(self.text)


@dataclass(frozen=True, slots=True)
class Registration:
    """A schema's id and version; once `records` are appended, if any, it has them."""

    id: int
    version: int
    records: tuple[Record, ...] = ()


class SchemaRegistry(Protocol):
    """What serdes ask of a registry. Blocking; SchemaError for what is unknown or refused."""

    def schema(self, id: int) -> str:  # noqa: A002 - Confluent's word
        """The text of the schema with this id, deleted or not."""

    def latest(self, subject: str) -> RegisteredSchema:
        """The subject's newest version that is not deleted."""

    def versions(self, subject: str) -> tuple[int, ...]:
        """The subject's versions that are not deleted; none for an unknown subject."""

    def register(self, subject: str, schema: object) -> int:
        """The id of the schema (JSON text or values), which the subject now has."""

    def check(self, subject: str, schema: object) -> tuple[str, ...]:
        """Why the subject would refuse the schema as its next version; empty when it would not."""


class Registry:
    """The fold: state, what a request would append, and `replay`."""

    def __init__(self) -> None:
        self._subjects: dict[str, dict[int, RegisteredSchema]] = {}
        self._identities: dict[int, Identity] = {}
        self._ids: dict[Identity, int] = {}
        self._id_max = 0
        self._levels: dict[str | None, Compatibility] = {}
        self._modes: dict[str | None, str] = {}
        self._repairs: dict[bytes, tuple[str, int]] = {}

    # --- what is known -----------------------------------------------------------------

    def subjects(self) -> tuple[str, ...]:
        """All subjects with a version that is not deleted."""
        return tuple(sorted(subject for subject in self._subjects if self.versions(subject)))

    def versions(self, subject: str) -> tuple[int, ...]:
        """The subject's versions that are not deleted, ascending."""
        return tuple(entry.version for entry in self._live(subject))

    def version(self, subject: str, version: int) -> RegisteredSchema:
        """One version, also a deleted one. SchemaError when there is none."""
        entry = self._subjects.get(subject, {}).get(version)
        if entry is None:
            raise SchemaError(f"subject {subject!r} has no version {version}")
        return entry

    def latest(self, subject: str) -> RegisteredSchema:
        """The newest version that is not deleted. SchemaError when there is none."""
        live = self._live(subject)
        if not live:
            raise SchemaError(f"subject {subject!r} is not known to the schema registry")
        return live[-1]

    def has_id(self, id: int) -> bool:  # noqa: A002
        """Whether a schema has this id."""
        return id in self._identities

    def by_id(self, id: int) -> str:  # noqa: A002
        """The text of the schema with this id. SchemaError when there is none or it is not Avro."""
        if id not in self._identities:
            raise SchemaError(f"schema id {id} is not known to the schema registry")
        schema_type, text = self._identities[id]
        if schema_type != AVRO:
            raise SchemaError(f"schema id {id} is {schema_type}, not Avro")
        return text

    def compatibility(self, subject: str | None = None) -> Compatibility:
        """The level of a subject: its own, else the global one."""
        return self._levels.get(subject, self._levels.get(None, DEFAULT_LEVEL))

    def check(self, subject: str, schema: object) -> tuple[str, ...]:
        """Why the subject would refuse the schema as its next version; empty when it would not."""
        level = self.compatibility(subject)
        if level is Compatibility.NONE:
            return ()
        older = {entry.version: entry.schema for entry in self._live(subject)}
        return tuple(complaints(level, parse_schema(schema), older))

    def repairs(self) -> tuple[Record, ...]:
        """Records to append so that every key's last record is what this fold holds of it."""
        records = []
        for key, (subject, version) in self._repairs.items():
            held = self._subjects.get(subject, {}).get(version)
            records.append((key, None if held is None else schema_record(held)[1]))
        return tuple(records)

    def _live(self, subject: str) -> list[RegisteredSchema]:
        entries = self._subjects.get(subject, {})
        return [entries[version] for version in sorted(entries) if not entries[version].deleted]

    # --- decisions ---------------------------------------------------------------------

    def register(self, subject: str, schema: object) -> Registration:
        """What makes `schema` a version of `subject`: nothing when it is one already.

        SchemaError when it is no schema, or the subject's compatibility level refuses it.
        """
        parsed = parse_schema(schema)
        identity = (AVRO, parsed.text)
        for entry in reversed(self._live(subject)):
            if self._identities[entry.id] == identity:
                return Registration(entry.id, entry.version)
        self._refuse_when_read_only(subject)
        reasons = self.check(subject, parsed.text)
        if reasons:
            raise SchemaError(_refusal(subject, self.compatibility(subject), reasons))
        version = max(self._subjects.get(subject, {}), default=0) + 1
        id = self._ids.get(identity, self._id_max + 1)  # noqa: A001
        entry = RegisteredSchema(subject, version, id, parsed.text)
        return Registration(id, version, (schema_record(entry),))

    def delete_version(
        self, subject: str, version: int, *, permanent: bool = False
    ) -> tuple[Record, ...]:
        """Hides a version, or forgets a hidden one for good. SchemaError in the wrong order."""
        self._refuse_when_read_only(subject)
        entry = self.version(subject, version)
        if permanent and not entry.deleted:
            raise SchemaError(f"subject {subject!r} version {version}: delete it softly first")
        if permanent:
            return ((schema_key(subject, version), None),)
        return () if entry.deleted else (schema_record(replace(entry, deleted=True)),)

    def delete_subject(self, subject: str, *, permanent: bool = False) -> tuple[Record, ...]:
        """Hides all versions of a subject, or forgets the hidden ones for good."""
        self._refuse_when_read_only(subject)
        versions = sorted(self._subjects.get(subject, {}))
        if not versions:
            raise SchemaError(f"subject {subject!r} is not known to the schema registry")
        if permanent:
            found = [self.delete_version(subject, version, permanent=True) for version in versions]
            return tuple(record for records in found for record in records)
        value = {"subject": subject, "version": versions[-1]}
        return ((_key("DELETE_SUBJECT", subject), orjson.dumps(value)),)

    def set_compatibility(
        self, level: Compatibility, subject: str | None = None
    ) -> tuple[Record, ...]:
        """Sets a subject's level, or that of all that have none of their own."""
        self._refuse_when_read_only(subject)
        value = orjson.dumps({"compatibilityLevel": level.name})
        return ((_key("CONFIG", subject), value),)

    def _refuse_when_read_only(self, subject: str | None) -> None:
        mode = self._modes.get(subject, self._modes.get(None, "READWRITE"))
        if mode != "READWRITE":
            raise SchemaError(f"subject {subject!r}: the schema registry is in mode {mode}")

    # --- the fold ----------------------------------------------------------------------

    def replay(self, key: bytes | None, value: bytes | None) -> bool:
        """Takes one record of the topic. False: it was ignored, as a conflict or as unreadable."""
        try:
            fields, content = orjson.loads(key or b""), value and orjson.loads(value)
            match fields:
                case {"keytype": "SCHEMA", "subject": str(subject), "version": int(version)}:
                    assert key is not None
                    return self._replay_schema(key, subject, version, content)
                case {"keytype": "DELETE_SUBJECT"}:
                    return self._replay_delete(content)
                case {"keytype": "CONFIG"}:
                    return self._replay_level(fields.get("subject"), content)
                case {"keytype": "MODE"}:
                    return self._replay_mode(fields.get("subject"), content)
        except (orjson.JSONDecodeError, UnicodeDecodeError):
            return False
        return isinstance(fields, dict) and fields.get("keytype") == "NOOP"

    def _replay_schema(self, key: bytes, subject: str, version: int, content: Any) -> bool:
        held = self._subjects.get(subject, {}).get(version)
        if content is None:
            return self._replay_tombstone(key, held, (subject, version))
        claim = _claim(content)
        if claim is None or (claim.subject, claim.version) != (subject, version):
            return False
        identity = _identity(claim)
        id_is_taken = self._identities.get(claim.id, identity) != identity
        if id_is_taken or (held is not None and held.id != claim.id):
            self._repairs[key] = (subject, version)
            return False
        self._subjects.setdefault(subject, {})[version] = claim
        self._identities[claim.id] = identity
        self._ids.setdefault(identity, claim.id)
        self._id_max = max(self._id_max, claim.id)
        self._repairs.pop(key, None)
        return True

    def _replay_tombstone(
        self, key: bytes, held: RegisteredSchema | None, place: tuple[str, int]
    ) -> bool:
        if held is not None and not held.deleted:
            self._repairs[key] = place
            return False
        self._repairs.pop(key, None)
        if held is not None:
            del self._subjects[held.subject][held.version]
            self._forget(held.id)
        return True

    def _forget(self, id: int) -> None:  # noqa: A002
        """Drops an id that no version has any more."""
        entries = (entry for versions in self._subjects.values() for entry in versions.values())
        if all(entry.id != id for entry in entries):
            identity = self._identities.pop(id)
            if self._ids.get(identity) == id:
                del self._ids[identity]

    def _replay_delete(self, content: Any) -> bool:
        match content:
            case {"subject": str(subject), "version": int(last)}:
                for version, entry in self._subjects.get(subject, {}).items():
                    if version <= last:
                        self._subjects[subject][version] = replace(entry, deleted=True)
                return True
        return content is None

    def _replay_level(self, subject: str | None, content: Any) -> bool:
        match content:
            case None:
                self._levels.pop(subject, None)
                return True
            case {"compatibilityLevel": str(name)} if name in Compatibility.__members__:
                self._levels[subject] = Compatibility[name]
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


class MemoryRegistry:
    """A registry without a log, for tests and the topology test driver: decides and replays."""

    def __init__(self) -> None:
        self.registry = Registry()

    def schema(self, id: int) -> str:  # noqa: A002
        """The text of the schema with this id."""
        return self.registry.by_id(id)

    def latest(self, subject: str) -> RegisteredSchema:
        """The subject's newest version."""
        return self.registry.latest(subject)

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

    def append(self, records: Sequence[Record]) -> None:
        """Replays what a decision of `registry` would append to the log."""
        for key, value in records:
            self.registry.replay(key, value)


def schema_key(subject: str, version: int) -> bytes:
    """The key of one version, byte for byte as Confluent's registry writes it."""
    key = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
    return orjson.dumps(key)


def schema_record(entry: RegisteredSchema) -> Record:
    """The record that claims a version."""
    value = {"subject": entry.subject, "version": entry.version, "id": entry.id}
    if entry.schema_type != AVRO:
        value["schemaType"] = entry.schema_type
    value |= {"schema": entry.text, "deleted": entry.deleted}
    return schema_key(entry.subject, entry.version), orjson.dumps(value)


def _key(keytype: str, subject: str | None) -> bytes:
    return orjson.dumps({"keytype": keytype, "subject": subject, "magic": 0})


def _claim(content: Any) -> RegisteredSchema | None:
    """What a SCHEMA record's value says; None when it does not say it."""
    match content:
        case {"subject": str(subject), "version": int(version), "id": int(id), "schema": str(text)}:
            schema_type = content.get("schemaType") or AVRO
            deleted = content.get("deleted") is True
            return RegisteredSchema(subject, version, id, text, deleted, str(schema_type))
    return None


def _identity(claim: RegisteredSchema) -> Identity:
    """What makes two schemas the same: the type and the canonical text, as far as there is one."""
    if claim.schema_type == AVRO:
        try:
            return AVRO, parse_schema(claim.text).text
        except SchemaError:
            return AVRO, claim.text
    return claim.schema_type, claim.text


def _refusal(subject: str, level: Compatibility, reasons: Sequence[str]) -> str:
    shown = "; ".join(reasons[:COMPLAINTS_SHOWN])
    more = len(reasons) - COMPLAINTS_SHOWN
    return (
        f"subject {subject!r}: not {level.name} compatible with {shown}"
        f"{f'; and {more} more' if more > 0 else ''}"
    )
