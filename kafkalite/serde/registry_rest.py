"""Confluent's REST API as functions of the registry: from a call to an answer and records.   [P]

Each row of ROUTES is a call: its path, its function, and the steps that the server takes around it:

    KNOWN     the answer never changes once it exists, so the log is not read first
    READ      the server reads the log to its end first
    WRITE     as READ; then it appends the records and reads them back, and starts again if one of
              them does not count

Owns   the paths, and the forms of the answers.
Never  reads or writes a log, or touches HTTP: `registry_server` does.
Fails  with SchemaError and Confluent's error code.
Source confluentinc/schema-registry, the classes of `rest.resources`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

from kafkalite.errors import SchemaError
from kafkalite.serde import registry_records as records
from kafkalite.serde.avro_schema import parse_schema
from kafkalite.serde.avro_text import rendered, self_contained
from kafkalite.serde.compatibility import Compatibility
from kafkalite.serde.registry import (
    INCOMPATIBLE,
    INVALID_MODE,
    INVALID_SCHEMA,
    LATEST,
    NOT_PERMITTED,
    SCHEMA_TYPES,
    Registry,
)
from kafkalite.serde.registry_calls import Call, PlainText, draft_of, member, object_of
from kafkalite.serde.registry_records import AVRO, Record, RegisteredSchema
from kafkalite.serde.registry_state import (
    DEFAULT_LEVEL,
    READ_WRITE,
    SCHEMA_NOT_FOUND,
    SUBJECT_NOT_FOUND,
    VERSION_NOT_FOUND,
)

SCHEMAS_SHOWN: Final = 1_000
CONFIGS: Final = {"normalize": bool}  # what else than a level may be set
CONFIGS_REFUSED: Final = (
    "alias", "compatibilityGroup", "compatibilityPolicy", "defaultMetadata", "defaultRuleSet",
    "overrideMetadata", "overrideRuleSet", "validateFields", "validateRules",
)  # fmt: skip

INVALID_LEVEL: Final = 42203
NO_SUBJECT_LEVEL: Final = 40408
NO_SUBJECT_MODE: Final = 40409

Answer: TypeAlias = tuple[Any, tuple[Record, ...]]


class Around(Enum):
    """The steps that the server takes around a call."""

    KNOWN = "answers from what is known, and reads the log only if that knows nothing"
    READ = "reads the log to its end, then answers"
    WRITE = "reads, answers, appends the records, until all of them count"


# --- answers -----------------------------------------------------------------------------


def _schema_json(entry: RegisteredSchema, text: str | None = None) -> dict[str, Any]:
    """The parts of a schema, without empty ones."""
    form: dict[str, Any] = {"guid": entry.draft.guid, "schemaType": entry.schema_type}
    if entry.references:
        form["references"] = [records.reference_json(r) for r in entry.references]
    for name, part in (("metadata", entry.metadata), ("ruleSet", entry.rule_set)):
        if part is not None:
            form[name] = records.json_values(part)
    return form | {"schema": entry.text if text is None else text}


def _version_json(entry: RegisteredSchema, text: str | None = None) -> dict[str, Any]:
    """A version of a subject."""
    place = {"subject": entry.subject, "version": entry.version, "id": entry.id}
    return place | _schema_json(entry, text) | {"deleted": entry.deleted}


def _formatted(registry: Registry, call: Call, entry: RegisteredSchema) -> str:
    """The schema's text; format=resolved is Avro that needs no references."""
    if call.text("format") == "resolved" and entry.schema_type == AVRO:
        return rendered(parse_schema(self_contained(registry.schema_of(entry))))
    return entry.text


def _known_subject(registry: Registry, subject: str, *, deleted: bool) -> None:
    if not registry.entries(subject, deleted=deleted):
        raise SchemaError(f"Subject '{subject}' not found.", code=SUBJECT_NOT_FOUND)


def _named_version(
    registry: Registry, call: Call, *, deleted: bool, anywhere: bool = False
) -> RegisteredSchema:
    """The version that the path names; with `anywhere` also one in another context."""
    version = call.version
    subjects = registry.in_contexts(call.subject) if anywhere else (call.subject,)
    found = (registry.find(subject, version) for subject in subjects)
    entry = next((e for e in found if e is not None and (deleted or not e.deleted)), None)
    if entry is None:
        _known_subject(registry, call.subject, deleted=deleted)
        raise SchemaError(f"Version {version} not found.", code=VERSION_NOT_FOUND)
    return entry


def _of_id(registry: Registry, call: Call) -> RegisteredSchema:
    """The schema whose id the path has."""
    entry = registry.find_id(call.id, call.query_subject)
    if entry is None:
        raise SchemaError(f"Schema {call.id} not found", code=SCHEMA_NOT_FOUND)
    return entry


# --- subjects ----------------------------------------------------------------------------


def _list_subjects(registry: Registry, call: Call) -> Answer:
    only_deleted = call.flag("deletedOnly")
    names = registry.subjects(deleted=call.flag("deleted") or only_deleted)
    if only_deleted:
        living = set(registry.subjects())
        names = tuple(name for name in names if name not in living)
    return call.page(name for name in names if call.wants(name)), ()


def _look_up(registry: Registry, call: Call) -> Answer:
    deleted = call.flag("deleted")
    draft = draft_of(call.body)
    subjects = registry.in_contexts(call.subject) if draft.text else ()
    found = (
        registry.lookup(subject, draft, deleted=deleted)
        for subject in subjects
        if subject == call.subject or registry.entries(subject, deleted=deleted)
    )
    entry = next((each for each in found if each is not None), None)
    if entry is None:
        _known_subject(registry, call.subject, deleted=deleted)
        raise SchemaError("Schema not found", code=SCHEMA_NOT_FOUND)
    return _version_json(entry, _formatted(registry, call, entry)), ()


def _delete_subject(registry: Registry, call: Call) -> Answer:
    _known_subject(registry, call.subject, deleted=True)
    permanent = call.flag("permanent")
    decided = registry.delete_subject(call.subject, permanent=permanent)
    entries = registry.entries(call.subject, deleted=permanent)
    return [entry.version for entry in entries], decided


def _latest_with_metadata(registry: Registry, call: Call) -> Answer:
    """The newest version whose metadata has the properties that are asked for."""
    deleted, wanted = call.flag("deleted"), call.properties.items()
    for entry in reversed(registry.entries(call.subject, deleted=deleted)):
        properties = (records.json_values(entry.metadata) or {}).get("properties")
        if properties is not None and wanted <= properties.items():
            return _version_json(entry, _formatted(registry, call, entry)), ()
    _known_subject(registry, call.subject, deleted=deleted)
    raise SchemaError("Schema not found", code=SCHEMA_NOT_FOUND)


# --- versions ----------------------------------------------------------------------------


def _list_versions(registry: Registry, call: Call) -> Answer:
    only_deleted, negative = call.flag("deletedOnly"), call.flag("deletedAsNegative")
    deleted = call.flag("deleted") or only_deleted
    _known_subject(registry, call.subject, deleted=deleted)
    entries = registry.entries(call.subject, deleted=deleted or negative)
    if negative:
        return call.page(-e.version if e.deleted else e.version for e in entries), ()
    return call.page(e.version for e in entries if e.deleted or not only_deleted), ()


def _register(registry: Registry, call: Call) -> Answer:
    call.refuse("force")
    draft = draft_of(call.body)
    # Zero and minus one say that the registry chooses.
    version = member(call.body, "version", int, "a number")
    number = member(call.body, "id", int, "a number")
    try:
        registration = registry.register(
            call.subject,
            draft,
            id=None if number is None or number < 0 else number,
            version=None if version is None or version <= 0 else version,
        )
    except SchemaError as error:
        if error.code != INCOMPATIBLE:
            raise
        raise SchemaError(
            "Schema being registered is incompatible with an earlier schema for subject "
            f'"{call.subject}", details: [{error}]',
            code=INCOMPATIBLE,
        ) from None
    entry = registration.entry
    place = {"id": entry.id, "version": entry.version}
    return place | _schema_json(entry, _formatted(registry, call, entry)), registration.records


def _get_version(registry: Registry, call: Call) -> Answer:
    entry = _named_version(registry, call, deleted=call.flag("deleted"), anywhere=True)
    return _version_json(entry, _formatted(registry, call, entry)), ()


def _get_version_text(registry: Registry, call: Call) -> Answer:
    entry = _named_version(registry, call, deleted=call.flag("deleted"), anywhere=True)
    return PlainText(_formatted(registry, call, entry)), ()


def _referenced_by(registry: Registry, call: Call) -> Answer:
    entry = _named_version(registry, call, deleted=True)
    found = registry.referrers(entry.subject, entry.version, deleted=call.flag("deleted"))
    return call.page(sorted({referrer.id for referrer in found})), ()


def _delete_version(registry: Registry, call: Call) -> Answer:
    version = _named_version(registry, call, deleted=True).version
    permanent = call.flag("permanent")
    return version, registry.delete_version(call.subject, version, permanent=permanent)


# --- schemas -----------------------------------------------------------------------------


def _list_schemas(registry: Registry, call: Call) -> Answer:
    deleted, latest = call.flag("deleted"), call.flag("latestOnly")
    entries = (
        entry
        for subject in registry.subjects(deleted=deleted)
        if call.wants(subject)
        for entry in registry.entries(subject, deleted=deleted)[-1 if latest else 0 :]
    )
    return [_version_json(entry) for entry in call.page(entries, SCHEMAS_SHOWN)], ()


def _get_schema(registry: Registry, call: Call) -> Answer:
    entry = _of_id(registry, call)
    form = _schema_json(entry, _formatted(registry, call, entry))
    if call.query_subject is not None:
        form |= {"subject": entry.subject, "version": entry.version}
    if call.flag("fetchMaxId"):
        form["maxId"] = registry.ids_of(call.query_subject).greatest
    return form, ()


def _get_schema_text(registry: Registry, call: Call) -> Answer:
    return PlainText(_formatted(registry, call, _of_id(registry, call))), ()


def _get_subjects_of_id(registry: Registry, call: Call) -> Answer:
    places = registry.places(_of_id(registry, call), deleted=call.flag("deleted"))
    return call.page(dict.fromkeys(subject for subject, _ in places)), ()


def _get_versions_of_id(registry: Registry, call: Call) -> Answer:
    places = registry.places(_of_id(registry, call), deleted=call.flag("deleted"))
    return call.page({"subject": subject, "version": version} for subject, version in places), ()


def _get_schema_of_guid(registry: Registry, call: Call) -> Answer:
    for entry in registry.of_guid(call.path["guid"].lower()).values():
        return _schema_json(entry, _formatted(registry, call, entry)), ()
    raise SchemaError(f"Schema {call.path['guid']} not found", code=SCHEMA_NOT_FOUND)


def _get_ids_of_guid(registry: Registry, call: Call) -> Answer:
    found = registry.of_guid(call.path["guid"].lower())
    return [{"context": context, "id": entry.id} for context, entry in found.items()], ()


def _list_types(registry: Registry, call: Call) -> Answer:
    return list(SCHEMA_TYPES), ()


# --- compatibility -----------------------------------------------------------------------


def _check_version(registry: Registry, call: Call) -> Answer:
    version = call.version
    entry = registry.find(call.subject, version)
    if entry is not None and entry.deleted:
        entry = None
    if entry is None and version != LATEST:
        raise SchemaError(f"Version {version} not found.", code=VERSION_NOT_FOUND)
    return _checked(registry, call, None if entry is None else entry.version), ()


def _check_subject(registry: Registry, call: Call) -> Answer:
    return _checked(registry, call, None), ()


def _checked(registry: Registry, call: Call, version: int | None) -> dict[str, Any]:
    """Whether a schema may follow; with `verbose` also why not."""
    verbose, draft = call.flag("verbose"), draft_of(call.body)
    try:
        reasons = registry.check(call.subject, draft, version)
    except SchemaError as error:
        if not verbose or error.code not in (None, INVALID_SCHEMA):
            raise
        reasons = (str(error),)
    else:
        if reasons:
            reasons += (f"{{compatibility: '{registry.compatibility(call.subject).name}'}}",)
    verdict: dict[str, Any] = {"is_compatible": not reasons}
    return verdict | {"messages": list(reasons)} if verbose else verdict


# --- configs and modes -------------------------------------------------------------------


def _get_config(registry: Registry, call: Call) -> Answer:
    scope = call.scope
    own = registry.config(scope)
    if scope is not None and own is None and not call.flag("defaultToGlobal"):
        raise SchemaError(
            f"Subject '{scope}' does not have subject-level compatibility configured",
            code=NO_SUBJECT_LEVEL,
        )
    wider = registry.wider_config(scope) if call.flag("defaultToGlobal") else {}
    level = {"compatibilityLevel": registry.compatibility(scope).name}
    return level | dict(wider) | dict(own or {}), ()


def _put_config(registry: Registry, call: Call) -> Answer:
    body = object_of(call.body)
    changes: dict[str, Any] = {}
    if "compatibility" in body:
        level = member(body, "compatibility", str, "a string")
        if level is not None and level.upper() not in Compatibility.__members__:
            known = ", ".join(Compatibility.__members__)
            raise SchemaError(
                f"Invalid compatibility level {level!r}. Valid values are {known}",
                code=INVALID_LEVEL,
            )
        changes["compatibilityLevel"] = None if level is None else level.upper()
    for name, kind in CONFIGS.items():
        if name in body:
            changes[name] = member(body, name, kind, "true or false")
    for name in CONFIGS_REFUSED:
        if body.get(name) is not None:
            raise SchemaError(f"config {name!r} is not supported", code=NOT_PERMITTED)
    if not changes:
        raise SchemaError("the body has no 'compatibility'", code=INVALID_LEVEL)
    decided = registry.set_config(changes, call.scope)
    told = {"compatibility" if n == "compatibilityLevel" else n: v for n, v in changes.items()}
    return told, decided


def _delete_config(registry: Registry, call: Call) -> Answer:
    decided = registry.delete_config(call.scope)
    had = {"compatibilityLevel": DEFAULT_LEVEL.name} | dict(registry.config(call.scope) or {})
    return had | {"compatibility": had["compatibilityLevel"]}, decided  # clients know either name


def _get_mode(registry: Registry, call: Call) -> Answer:
    scope = call.scope
    mode = registry.own_mode(scope)
    if mode is None and scope is not None and not call.flag("defaultToGlobal"):
        raise SchemaError(
            f"Subject '{scope}' does not have subject-level mode configured", code=NO_SUBJECT_MODE
        )
    return {"mode": mode or registry.mode(scope)}, ()


def _put_mode(registry: Registry, call: Call) -> Answer:
    mode = member(object_of(call.body), "mode", str, "a string")
    if mode is None:
        raise SchemaError("the body has no 'mode'", code=INVALID_MODE)
    decided = registry.set_mode(mode.upper(), call.scope, force=call.flag("force"))
    return {"mode": mode}, decided


def _delete_mode(registry: Registry, call: Call) -> Answer:
    call.refuse("recursive")
    mode = registry.own_mode(call.scope) or READ_WRITE
    return {"mode": mode}, registry.delete_mode(call.scope)


# --- the rest ----------------------------------------------------------------------------


def _nothing(registry: Registry, call: Call) -> Answer:
    return {}, ()


def _contexts(registry: Registry, call: Call) -> Answer:
    prefix = call.text("contextPrefix")
    return call.page(name for name in registry.contexts() if name.startswith(prefix)), ()


@dataclass(frozen=True, slots=True)
class Route:
    """One call: its method, path and function, and the server's steps around it."""

    method: str
    path: str
    answer: Callable[[Registry, Call], Answer]
    around: Around = Around.READ

    @property
    def segments(self) -> tuple[str, ...]:
        """The parts of the path; one in braces is a parameter."""
        return tuple(self.path.split("/")[1:])


KNOWN, READ, WRITE = Around
ROUTES: Final = (
    Route("GET", "/", _nothing, KNOWN),
    Route("POST", "/", _nothing, KNOWN),
    Route("GET", "/subjects", _list_subjects),
    Route("POST", "/subjects/{subject}", _look_up),
    Route("DELETE", "/subjects/{subject}", _delete_subject, WRITE),
    Route("GET", "/subjects/{subject}/metadata", _latest_with_metadata),
    Route("GET", "/subjects/{subject}/versions", _list_versions),
    Route("POST", "/subjects/{subject}/versions", _register, WRITE),
    Route("GET", "/subjects/{subject}/versions/{version}", _get_version),
    Route("DELETE", "/subjects/{subject}/versions/{version}", _delete_version, WRITE),
    Route("GET", "/subjects/{subject}/versions/{version}/schema", _get_version_text),
    Route("GET", "/subjects/{subject}/versions/{version}/referencedby", _referenced_by),
    Route("GET", "/schemas", _list_schemas),
    Route("GET", "/schemas/types", _list_types, KNOWN),
    Route("GET", "/schemas/ids/{id}", _get_schema, KNOWN),
    Route("GET", "/schemas/ids/{id}/schema", _get_schema_text, KNOWN),
    Route("GET", "/schemas/ids/{id}/subjects", _get_subjects_of_id),
    Route("GET", "/schemas/ids/{id}/versions", _get_versions_of_id),
    Route("GET", "/schemas/guids/{guid}", _get_schema_of_guid, KNOWN),
    Route("GET", "/schemas/guids/{guid}/ids", _get_ids_of_guid),
    Route("POST", "/compatibility/subjects/{subject}/versions", _check_subject),
    Route("POST", "/compatibility/subjects/{subject}/versions/{version}", _check_version),
    Route("GET", "/config", _get_config),
    Route("PUT", "/config", _put_config, WRITE),
    Route("DELETE", "/config", _delete_config, WRITE),
    Route("GET", "/config/{subject}", _get_config),
    Route("PUT", "/config/{subject}", _put_config, WRITE),
    Route("DELETE", "/config/{subject}", _delete_config, WRITE),
    Route("GET", "/mode", _get_mode),
    Route("PUT", "/mode", _put_mode, WRITE),
    Route("DELETE", "/mode", _delete_mode, WRITE),
    Route("GET", "/mode/{subject}", _get_mode),
    Route("PUT", "/mode/{subject}", _put_mode, WRITE),
    Route("DELETE", "/mode/{subject}", _delete_mode, WRITE),
    Route("GET", "/contexts", _contexts),
)


def find_route(method: str, segments: tuple[str, ...]) -> tuple[Route, dict[str, str]] | set[str]:
    """The route of a call and its path's parameters; else the methods that the path has."""
    methods = set()
    for route in ROUTES:
        if len(route.segments) != len(segments):
            continue
        pairs = list(zip(route.segments, segments, strict=True))
        if all(part.startswith("{") or part == given for part, given in pairs):
            if route.method == method:
                return route, {p[1:-1]: given for p, given in pairs if p.startswith("{")}
            methods.add(route.method)
    return methods
