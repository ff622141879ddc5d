"""A call of Confluent's REST API as data: its path, its query and its body.                 [P]

Owns   parameters, bodies and their bounds; `registry_rest` owns the answers.
Never  touches HTTP: `registry_server` takes a request apart.
Fails  with SchemaError and Confluent's error code; `problem` is the client's message.
Source confluentinc/schema-registry `RegisterSchemaRequest`, `VersionId`, `Errors`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from kafkalite.errors import SchemaError
from kafkalite.serde import registry_records as records
from kafkalite.serde.registry import INVALID_SCHEMA, LATEST, NOT_PERMITTED, SCHEMA_TOO_LARGE
from kafkalite.serde.registry_contexts import (
    DEFAULT,
    DEFAULT_PREFIX,
    context_of,
    name_in_context,
    plain,
)
from kafkalite.serde.registry_records import AVRO, VERSIONS, Draft

SCHEMA_BYTES_MAX: Final = 1_000_000  # a record of it must fit into a batch of Kafka's default size
REFERENCES_MAX: Final = 1_000
ALL_CONTEXTS: Final = ":*:"

NOT_FOUND: Final = 404
UNPROCESSABLE: Final = 422
INVALID_VERSION: Final = 42202


@dataclass(frozen=True, slots=True)
class Call:
    """A request: its path, its query, and its body as JSON values.

    If a parameter comes several times, the first value counts, as with Confluent's registry.
    """

    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, Sequence[str]] = field(default_factory=dict)
    body: Any = None

    @property
    def subject(self) -> str:
        """The subject, without the name of the default context before it."""
        return plain(self.path["subject"])

    @property
    def scope(self) -> str | None:
        """The subject of a config or mode; None: of all subjects."""
        return self.subject or None if "subject" in self.path else None

    @property
    def query_subject(self) -> str | None:
        """The subject that a parameter names."""
        return plain(self.text("subject")) or None

    def wants(self, subject: str) -> bool:
        """Whether a subject's name has the wanted prefix, in all contexts or in one."""
        prefix = self.text("subjectPrefix", ALL_CONTEXTS)
        if prefix.startswith(ALL_CONTEXTS):
            return name_in_context(subject).startswith(prefix.removeprefix(ALL_CONTEXTS))
        if prefix.startswith(DEFAULT_PREFIX):
            return context_of(subject) == DEFAULT and subject.startswith(plain(prefix))
        return subject.startswith(prefix)

    @property
    def properties(self) -> dict[str, str]:
        """The pairs that parameters `key` and `value` make, each as often as there are pairs."""
        return dict(zip(self.query.get("key", ()), self.query.get("value", ()), strict=False))

    @property
    def version(self) -> int:
        """The version in the path. SchemaError when it is none."""
        text = self.path["version"].strip().lower()
        try:
            version = LATEST if text == "latest" else int(text)
        except ValueError:
            version = 0
        if version != LATEST and version not in VERSIONS:
            raise SchemaError(
                f"The specified version '{self.path['version']}' is not a valid version id. "
                'Allowed values are between [1, 2^31-1] and the string "latest"',
                code=INVALID_VERSION,
            )
        return version

    @property
    def id(self) -> int:
        """The schema id in the path. SchemaError when it is no number."""
        try:
            return int(self.path["id"])
        except ValueError:
            raise SchemaError("HTTP 404 Not Found", code=NOT_FOUND) from None

    def text(self, name: str, default: str = "") -> str:
        """A parameter."""
        return next(iter(self.query.get(name, ())), default)

    def flag(self, name: str) -> bool:
        """Whether a parameter is there and true."""
        return self.text(name).lower() == "true"

    def refuse(self, name: str) -> None:
        """SchemaError when a flag is set that has no effect here."""
        if self.flag(name):
            raise SchemaError(f"{name!r} is not supported", code=NOT_PERMITTED)

    def number(self, name: str, default: int) -> int:
        """A parameter that is a number. SchemaError when it is not."""
        text = self.text(name)
        try:
            return int(text) if text else default
        except ValueError:
            raise SchemaError(f"{name}={text!r} is no number", code=UNPROCESSABLE) from None

    def page(self, values: Iterable[Any], most: int | None = None) -> list[Any]:
        """The part of an answer that `offset` and `limit` ask for, and no more than `most`."""
        begin, limit = max(self.number("offset", 0), 0), self.number("limit", -1)
        wanted = limit if limit > 0 else most
        if wanted is not None and most is not None:
            wanted = min(wanted, most)
        return list(islice(values, begin, None if wanted is None else begin + wanted))


def object_of(body: Any) -> dict[str, Any]:
    """A body that is an object. SchemaError when it is not."""
    if not isinstance(body, dict):
        raise SchemaError("the body must be a JSON object", code=UNPROCESSABLE)
    return body


def member(body: dict[str, Any], name: str, kind: type, word: str) -> Any:
    """A member of a body, or None. SchemaError when it is of another type."""
    value = body.get(name)
    if value is None or (isinstance(value, kind) and not (kind is int and value is True)):
        return value
    raise SchemaError(f"{name!r} must be {word}", code=UNPROCESSABLE)


def draft_of(body: Any) -> Draft:
    """The schema that a body asks about. SchemaError when it asks for none, or for too much."""
    body = object_of(body)
    text = member(body, "schema", str, "a string") or ""
    if len(text.encode()) > SCHEMA_BYTES_MAX:
        raise SchemaError(
            f"the schema has {len(text.encode())} bytes, {SCHEMA_BYTES_MAX} are possible",
            code=SCHEMA_TOO_LARGE,
        )
    metadata, rule_set = body.get("metadata"), body.get("ruleSet")
    if not records.is_metadata(metadata):
        raise SchemaError(
            "'metadata' must be an object of tags, properties, sensitive", code=UNPROCESSABLE
        )
    for name in ("schemaTagsToAdd", "schemaTagsToRemove", "propagateSchemaTags"):
        if body.get(name):
            raise SchemaError(f"{name!r} is not supported", code=NOT_PERMITTED)
    return Draft(
        text,
        schema_type=member(body, "schemaType", str, "a string") or AVRO,
        references=_references(member(body, "references", list, "a list") or []),
        metadata=records.json_text(metadata),
        rule_set=records.json_text(rule_set),
    )


def _references(values: list[Any]) -> tuple[records.Reference, ...]:
    if len(values) > REFERENCES_MAX:
        raise SchemaError(
            f"the schema has {len(values)} references, {REFERENCES_MAX} are possible",
            code=INVALID_SCHEMA,
        )
    found = []
    for value in values:
        match value:
            case {"name": str(name), "subject": str(subject), "version": int(version)} if (
                version == LATEST or version in VERSIONS
            ):
                found.append(records.Reference(name, subject, version))
            case _:
                raise SchemaError(
                    f"reference {value!r}: expected a name, a subject and a version",
                    code=INVALID_SCHEMA,
                )
    return tuple(found)


class PlainText(str):
    """An answer that is a text, not JSON."""

    __slots__ = ()


def problem(error: SchemaError) -> tuple[int, dict[str, Any]]:
    """The HTTP status and the body that tell a client of an error."""
    code = INVALID_SCHEMA if error.code is None else error.code
    return int(str(code)[:3]), {"error_code": code, "message": str(error)}
