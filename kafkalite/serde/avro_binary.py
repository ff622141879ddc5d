"""One value as Avro's bytes, and back: fastavro, with the checks it lacks.                [P]

fastavro gets each schema as the type of the only field of a record, which adds no bytes: so a
schema of any type is parsed once and kept, and a value of any type is checked like a field's.

This module does, and fastavro does not:

- It writes 1.5 as the int 1, and 2^31 as an int. So each value is validated before (also by
  fastavro) and has no fields that the schema lacks.
- Defaults come out as they stand in the schema's JSON, and one list is shared by all records. Here
  they are Python's own values, and copied.
- Its C code has no limit of recursion: a few thousand nested values end the process. Schemas that
  contain themselves go to its Python code, which raises RecursionError.
- A datetime without a time zone is written as the machine's local time. Here it is refused.
- An array of nulls takes no bytes, so four of them may claim 2^31. Such a schema is refused.

Owns   the parsed schemas, so many and so long.
Fails  with SchemaError for a schema, with any Exception for a value or for bytes: the codec makes
       it SerdeError.
Source fastavro's documentation; the logical types are Python's own as it has them: datetime, date,
       time, Decimal, UUID.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

import fastavro
from fastavro import _read_py, _validation_py, _write_py, validation

from kafkalite.errors import SchemaError
from kafkalite.serde.avro_schema import Schema, default_value, parse_schema, type_name
from kafkalite.serde.avro_zones import Check, zone_check
from kafkalite.serde.glimpse import glimpse
from kafkalite.serde.text_cache import cached_by_text

ROOT: Final = "value"  # the field that the schema is the type of
ROOT_RECORD: Final = "_kafkalite_root"


@dataclass(frozen=True, slots=True)
class _Library:
    """The functions of fastavro, in C or in Python."""

    read: Callable[..., Any]
    write: Callable[..., None]
    validate: Callable[..., bool]


IN_C: Final = _Library(fastavro.schemaless_reader, fastavro.schemaless_writer, validation.validate)
IN_PYTHON: Final = _Library(
    _read_py.schemaless_reader, _write_py.schemaless_writer, _validation_py.validate
)


@dataclass(frozen=True, slots=True, eq=False)
class Binary:
    """A schema, ready to read and to write. `copies`: records must not share its defaults."""

    parsed: Any
    library: _Library
    copies: bool
    check_zones: Check | None

    def encode(self, value: Any, out: BytesIO) -> None:
        """Writes the bytes of a value."""
        record, tuples = {ROOT: value}, {"disable_tuple_notation": True}
        if not self.library.validate(record, self.parsed, raise_errors=False, **tuples):
            raise ValueError(self._misfit(record))
        if self.check_zones is not None:
            self.check_zones(value, "")
        self.library.write(out, self.parsed, record, strict_allow_default=True, **tuples)

    def decode(self, data: BytesIO, reader: Binary | None) -> Any:
        """The value whose bytes begin where `data` is, as the reader's if that is another."""
        if reader is None:
            return self.library.read(data, self.parsed)[ROOT]
        value = self.library.read(data, self.parsed, reader.parsed)[ROOT]
        return deepcopy(value) if reader.copies else value

    def _misfit(self, record: dict[str, Any]) -> str:
        """A description of a value's mismatches, for each branch of a union."""
        try:
            self.library.validate(record, self.parsed, disable_tuple_notation=True)
        except validation.ValidationError as error:
            return "; ".join(
                f"{wrong.field.removeprefix(f'{ROOT_RECORD}.')}: {type(wrong.datum).__name__} "
                f"{glimpse(wrong.datum)} is no {type_name(wrong.schema)}"
                for wrong in error.errors
            )
        return "it does not fit"


@cached_by_text
def binary(text: str) -> Binary:
    """The schema of a canonical text, parsed once in a process."""
    schema = parse_schema(text)
    if schema.boundless:
        raise SchemaError(f"schema {glimpse(text)} has an array whose items take no bytes")
    named: dict[str, Any] = {}
    root = {"type": "record", "name": ROOT_RECORD, "fields": [{"name": ROOT, "type": schema.json}]}
    try:
        parsed = fastavro.parse_schema(root, named)
        defaults = _set_defaults(schema, named)
    except Exception as error:
        reason = str(error) or repr(error)
        raise SchemaError(f"fastavro takes no schema {glimpse(text)}: {reason}") from error
    copies = any(isinstance(default, list | dict) for default in defaults)
    return Binary(parsed, IN_PYTHON if schema.recursive else IN_C, copies, zone_check(schema))


def _set_defaults(schema: Schema, named: dict[str, Any]) -> list[Any]:
    """Puts Python's values in the place of JSON in all records of a parsed schema."""
    fields = {(name, f["name"]): f for name in schema.names for f in named[name].get("fields", ())}
    values = []
    for name, field in schema.fields_with_defaults():
        value = default_value(schema, field["type"], field["default"])
        fields[name, field["name"]]["default"] = value
        values.append(value)
    return values
