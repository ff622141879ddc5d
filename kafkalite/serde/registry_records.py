"""The records of the topic `_schemas`, in the format of Confluent's registry.                [P]

    {"keytype":"SCHEMA","subject":"s","version":1,"magic":1}
        {"subject":"s","version":1,"id":7,"schema":"…","deleted":false}      of Avro
        {…,"schemaType":"JSON","references":[{"name":"n","subject":"t","version":2}],…}
        null                                                    gone for good
    {"keytype":"DELETE_SUBJECT","subject":"s","magic":0}
        {"subject":"s","version":3}                             versions up to 3 are deleted
    {"keytype":"CONFIG","subject":"s","magic":0}                no subject: for all subjects
        {"subject":"s","compatibilityLevel":"FULL"}
    {"keytype":"MODE","subject":"s","magic":0}                  no subject: for all subjects
        {"subject":"s","mode":"READONLY"}
    {"keytype":"CLEAR_SUBJECT","subject":"s","magic":0}         removes deleted versions from s
    {"keytype":"CONTEXT","tenant":"t","context":".c"}           a context has subjects
    {"keytype":"NOOP","magic":0}

Keys are written byte for byte as Confluent's registry writes them, because compaction compares
their bytes.

Owns   the formats, and the types of their values. The fold (`registry`) interprets the records.
Fails  with None for the value of a SCHEMA record that claims nothing.
Source confluentinc/schema-registry `SchemaKey`, `SchemaValue`, `ConfigKey`, `ModeKey`,
       `DeleteSubjectKey`, `ClearSubjectKey`, `SchemaReference`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import md5
from typing import Any, Final, TypeAlias
from uuid import UUID

import orjson

from kafkalite.errors import SchemaError
from kafkalite.serde.avro_schema import Schema, canonical_text, parse_schema

AVRO: Final = "AVRO"
JSON: Final = "JSON"

VERSIONS: Final = range(1, 2**31)
IDS: Final = range(2**31)  # four bytes in front of every record

Record: TypeAlias = tuple[bytes, bytes | None]


@dataclass(frozen=True, slots=True, order=True)
class Reference:
    """A schema's reference to another schema, which it calls `name`."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Draft:
    """A schema in a request. Metadata and rule set are JSON texts with sorted keys."""

    text: str
    schema_type: str = AVRO
    references: tuple[Reference, ...] = ()
    metadata: str | None = None
    rule_set: str | None = None

    @property
    def identity(self) -> Identity:
        """The identity of a schema: equal for two forms of the same schema."""
        text = self.text
        if self.schema_type == AVRO:
            with suppress(SchemaError):  # one of another registry's making is what it is
                text = canonical_text(text)
        elif self.schema_type == JSON:
            with suppress(orjson.JSONDecodeError):
                text = json_text(orjson.loads(text)) or text
        references = tuple(sorted(set(self.references)))
        return Identity(self.schema_type, text, references, self.metadata, self.rule_set)

    @property
    def guid(self) -> str:
        """The schema's name in all registries: a hash of its content, as a UUID."""
        digest = md5(self.text.encode(), usedforsecurity=False)
        for reference in self.references:
            digest.update(f"{reference.name}{reference.subject}".encode())
            digest.update(reference.version.to_bytes(4, "big"))
        if self.metadata is not None:
            digest.update(b"\1" + _hashed_metadata(orjson.loads(self.metadata)))
        return str(UUID(bytes=digest.digest()))


@dataclass(frozen=True, slots=True)
class Identity:
    """The canonical form of a schema, with everything that distinguishes it from others."""

    schema_type: str
    text: str
    references: tuple[Reference, ...]
    metadata: str | None
    rule_set: str | None


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """One version of a subject. `text` is the stored schema."""

    subject: str
    version: int
    id: int
    text: str
    deleted: bool = False
    schema_type: str = AVRO
    references: tuple[Reference, ...] = ()
    metadata: str | None = None
    rule_set: str | None = None

    @property
    def schema(self) -> Schema:
        """The parsed schema. SchemaError for other types than Avro, and if it needs references."""
        if self.schema_type != AVRO:
            raise SchemaError(f"schema id {self.id} is {self.schema_type}, not Avro")
        return parse_schema(self.text)

    @property
    def draft(self) -> Draft:
        """The registered schema, without its version and id."""
        return Draft(self.text, self.schema_type, self.references, self.metadata, self.rule_set)


def schema_key(subject: str, version: int) -> bytes:
    """The key of one version."""
    key = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
    return orjson.dumps(key)


def schema_record(entry: RegisteredSchema) -> Record:
    """The record that claims a version."""
    value: dict[str, Any] = {"subject": entry.subject, "version": entry.version, "id": entry.id}
    if entry.schema_type != AVRO:
        value["schemaType"] = entry.schema_type
    if entry.references:
        value["references"] = [reference_json(reference) for reference in entry.references]
    if entry.metadata is not None:
        value["metadata"] = orjson.loads(entry.metadata)
    if entry.rule_set is not None:
        value["ruleSet"] = orjson.loads(entry.rule_set)
    value |= {"schema": entry.text, "deleted": entry.deleted}
    return schema_key(entry.subject, entry.version), orjson.dumps(value)


def tombstone(subject: str, version: int) -> Record:
    """The record after which a version never was."""
    return schema_key(subject, version), None


def delete_subject_record(subject: str, last_version: int) -> Record:
    """The record that deletes all versions up to one."""
    value = {"subject": subject, "version": last_version}
    return _key("DELETE_SUBJECT", subject), orjson.dumps(value)


def clear_subject_record(subject: str | None) -> Record:
    """The record after which a subject, or all, have no deleted versions any more."""
    return _key("CLEAR_SUBJECT", subject), orjson.dumps(_of(subject))


def config_record(subject: str | None, config: Mapping[str, Any] | None) -> Record:
    """The record that sets a subject's config, or that of all; None: it has none of its own."""
    value = None if config is None else orjson.dumps(_of(subject) | dict(config))
    return _key("CONFIG", subject), value


def mode_record(subject: str | None, mode: str | None) -> Record:
    """The record that sets a subject's mode, or that of all; None: it has none of its own."""
    value = None if mode is None else orjson.dumps(_of(subject) | {"mode": mode})
    return _key("MODE", subject), value


def context_record(context: str) -> Record:
    """The record that names a context."""
    fields = {"tenant": "default", "context": context}
    key = {"keytype": "CONTEXT"} | fields | {"magic": 0}
    return orjson.dumps(key), orjson.dumps(fields)


def reference_json(reference: Reference) -> dict[str, Any]:
    """A reference as JSON values."""
    return {
        "name": reference.name,
        "subject": reference.subject,
        "version": reference.version,
    }


def claim(content: Any) -> RegisteredSchema | None:
    """The content of a SCHEMA record's value; None if the value is not valid."""
    match content:
        case {"subject": str(subject), "version": int(version), "id": int(id), "schema": str(text)}:
            references = _references(content.get("references") or [])
            metadata = content.get("metadata")
            if references is None or not is_metadata(metadata):
                return None
            if version not in VERSIONS or id not in IDS:
                return None
            return RegisteredSchema(
                subject,
                version,
                id,
                text,
                deleted=content.get("deleted") is True,
                schema_type=str(content.get("schemaType") or AVRO),
                references=references,
                metadata=json_text(metadata),
                rule_set=json_text(content.get("ruleSet")),
            )
    return None


def json_text(value: Any) -> str | None:
    """JSON values as text in which equal values are equal; None for null."""
    return None if value is None else orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def is_metadata(value: Any) -> bool:
    """Whether JSON values have the form of a schema's metadata; null has."""
    if value is None:
        return True
    if not isinstance(value, dict):
        return False
    tags, properties = value.get("tags") or {}, value.get("properties") or {}
    sensitive = value.get("sensitive") or []
    return (
        isinstance(tags, dict)
        and all(_are_texts(names) for names in tags.values())
        and isinstance(properties, dict)
        and _are_texts(list(properties.values()))
        and _are_texts(sensitive)
    )


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _hashed_metadata(metadata: Mapping[str, Any]) -> bytes:
    """Metadata in the order in which Confluent's registry hashes it."""
    tags, properties = metadata.get("tags") or {}, metadata.get("properties") or {}
    texts = [text for name in sorted(tags) for text in (name, *sorted(tags[name]))]
    texts += [text for name in sorted(properties) for text in (name, properties[name])]
    return "".join([*texts, *sorted(metadata.get("sensitive") or ())]).encode()


def json_values(text: str | None) -> Any:
    """JSON values from the output of `json_text`."""
    return None if text is None else orjson.loads(text)


def _references(values: Any) -> tuple[Reference, ...] | None:
    found = []
    for value in values if isinstance(values, list) else [None]:
        match value:
            case {"name": str(name), "subject": str(subject), "version": int(version)} if (
                version in VERSIONS
            ):
                found.append(Reference(name, subject, version))
            case _:
                return None
    return tuple(found)


def _key(keytype: str, subject: str | None) -> bytes:
    return orjson.dumps({"keytype": keytype} | _of(subject) | {"magic": 0})


def _of(subject: str | None) -> dict[str, Any]:
    return {} if subject is None else {"subject": subject}
