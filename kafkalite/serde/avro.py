"""The Avro serde: its options, as data of a plan.                                        [IO]

Owns   nothing; an open serde is `avro_codec`'s.
Never  opens anything but the `.avsc` file whose path it is given, once, when it is made.
Fails  with SchemaError when that is no schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from kafkalite.errors import SchemaError
from kafkalite.serde.avro_codec import AvroCodec, SubjectStrategy
from kafkalite.serde.avro_schema import FULL_NAME, PRIMITIVES, kind, parse_schema
from kafkalite.serde.glimpse import glimpse
from kafkalite.serde.serde import Codec, Serde, SerdeContext

StrategyName: TypeAlias = Literal["topic", "record", "topic_record"]

JSON_BEGINS: Final = frozenset('{["')


@dataclass(frozen=True, slots=True)
class AvroSerde:
    """Records in Confluent's wire format, with schemas in the registry."""

    name: str | None
    schema: str | None  # canonical text
    subject_strategy: SubjectStrategy

    def open(self, context: SerdeContext) -> Codec:
        """The codec. SchemaError when the context has no registry."""
        if context.registry is None:
            raise SchemaError(
                f"{self!r} needs a schema registry: open it with SerdeContext(registry=...)"
            )
        return AvroCodec(
            context.registry,
            what=repr(self),
            name=self.name,
            schema=self.schema,
            strategy=self.subject_strategy,
            is_key=context.is_key,
            as_dicts=context.as_dicts,
            fields=context.fields,
            forms=context.forms,
        )

    def __repr__(self) -> str:
        parts = [] if self.name is None else [repr(self.name)]
        if self.schema is not None:
            parts.append(f"schema={glimpse(self.schema, 40)}")
        if self.subject_strategy is not SubjectStrategy.TOPIC:
            parts.append(f"subject_strategy={self.subject_strategy.name.lower()!r}")
        return f"avro({', '.join(parts)})"


def avro(
    name: str | None = None,
    schema: dict[str, Any] | list[Any] | str | PathLike[str] | None = None,
    subject_strategy: StrategyName = "topic",
) -> Serde[Any]:
    """Avro with schemas in the registry.

    With a `schema` (JSON values, JSON text or the path of an .avsc file) values are written with it
    and read as it. Without one, values are read as the subject's latest schema; written values make
    the schema: a record called `name`, or after the topic, whose fields are nullable, and which
    grows with the values as far as the subject's compatibility level allows.

    A record that is read is a row: it equals a dict and is used like one (`row["at"]`, `in`, `get`,
    `{**row}`, `match`), and makes a field's value when it is asked for. A row is no `dict` and
    cannot be changed; `dict(row)` is a dict of its own, `json.dumps` takes rows with
    `default=dict`. Records of schemas that have no fast way, and all where the native module is
    missing, are dicts; `SerdeContext(as_dicts=True)` makes all of them dicts.

    Values come and go as fastavro has them: `timestamp-millis` is a datetime, `decimal` a Decimal.
    A datetime needs a time zone, except for a local-timestamp; milliseconds cut off microseconds.
    Read as another schema, a number is a date when it was written as one, new fields come last, and
    of a union's branches the first that fits is taken, promoted or not: put long before double.

    The subject is `<topic>-value` or `<topic>-key`; with `subject_strategy="record"` the record's
    full name, with "topic_record" `<topic>-<full name>`.
    """
    strategies = SubjectStrategy.__members__
    if subject_strategy.upper() not in strategies:
        known = ", ".join(repr(known.lower()) for known in strategies)
        raise SchemaError(f"subject_strategy {subject_strategy!r}: expected one of {known}")
    if name is not None and not FULL_NAME.fullmatch(name):
        form = "letters, digits and _, not a digit first, with dots between its parts"
        raise SchemaError(f"{name!r} is no legal name of an Avro record: use {form}")
    text = None if schema is None else _canonical(schema, name)
    return AvroSerde(name, text, strategies[subject_strategy.upper()])


def _canonical(schema: object, name: str | None) -> str:
    parsed = parse_schema(_read(schema))
    own = parsed.name if kind(parsed.root) == "record" else None
    if name is not None and own is not None and name not in (own, own.rpartition(".")[2]):
        raise SchemaError(f"avro({name!r}): the schema's record is called {own!r}")
    return parsed.text


def _read(schema: object) -> object:
    if not isinstance(schema, str | PathLike):
        return schema
    if isinstance(schema, str) and (schema in PRIMITIVES or schema.lstrip()[:1] in JSON_BEGINS):
        return schema
    try:
        return Path(schema).read_text()
    except (OSError, UnicodeDecodeError) as error:
        shown = glimpse(str(schema))
        raise SchemaError(
            f"schema {shown} is neither JSON nor a file that can be read: {error}"
        ) from None
