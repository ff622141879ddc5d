"""Avro at work: columns of values to records in Confluent's wire format, and back.        [D]

Writing with a given schema registers it once a topic. Without one, the schema is the subject's
latest, or inferred from the first column; values that do not fit evolve it: the next version is
registered, as far as the registry allows.

Reading looks at the first five bytes of all records; those of one schema are read together. They
come out as the reader's schema: the given one, else the subject's latest, looked up when the topic
is first read and again when a newer id shows up (a batch is read as one schema), else the writer's.
A record is a row that looks like a dict, or a dict (`avro_reader`).

Owns   the schemas of each topic and id; `avro_writer` and `avro_reader` do the work.
Never  leaves a record out, or a field that a schema has no place for.
Fails  with SerdeError (bytes, values) or SchemaError (the registry refuses or does not know), both
       with the index of the first record that failed; what keeps the registry from answering comes
       through as it is.
Source TopicNameStrategy, RecordNameStrategy, TopicRecordNameStrategy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from kafkalite.core.columns import FEW
from kafkalite.core.protocol.record_codec import Spans
from kafkalite.errors import SchemaError, SerdeError
from kafkalite.serde.arrow_form import ArrowForm
from kafkalite.serde.avro_binary import binary
from kafkalite.serde.avro_columns import NATIVE, common_head, common_head_of_spans
from kafkalite.serde.avro_infer import evolve, infer, record_name
from kafkalite.serde.avro_reader import HEADER_BYTES, Reader
from kafkalite.serde.avro_schema import Schema, kind, parse_schema
from kafkalite.serde.avro_writer import HEADER, MAGIC, Writer
from kafkalite.serde.glimpse import glimpse
from kafkalite.serde.registry import SchemaRegistry

if TYPE_CHECKING:
    import pyarrow as pa

READ_ERRORS: Final[dict[type[Exception], str]] = {
    EOFError: "the data ends early",
    IndexError: "a union has no such branch or an enum no such symbol",
}
FORM_RECORDS: Final = 1_000  # read together, below which objects cost less than Arrow's calls
READERS_MAX: Final = 1024  # ids that one codec keeps readers for


class SubjectStrategy(Enum):
    """How a subject is called."""

    TOPIC = "<topic>-key or <topic>-value"
    RECORD = "<record's full name>"
    TOPIC_RECORD = "<topic>-<record's full name>"


class AvroCodec:
    """An open Avro serde. `what` is what messages call it."""

    takes_arrow = True

    def __init__(
        self,
        registry: SchemaRegistry,
        *,
        what: str,
        name: str | None,
        schema: str | None,
        strategy: SubjectStrategy,
        is_key: bool,
        as_dicts: bool = False,
        fields: frozenset[str] | None = None,
        forms: bool = False,
    ) -> None:
        self._registry, self._what, self._name = registry, what, name
        self._given = None if schema is None else parse_schema(schema)
        self._strategy, self._suffix = strategy, "key" if is_key else "value"
        self._as_dicts, self._fields, self._forms = as_dicts, fields, forms
        self._writers: dict[str, Writer] = {}  # topic -> the schema to write with
        self._latest: dict[str, Writer | None] = {}  # subject -> the schema to read as
        self._readers: dict[tuple[str, bytes], Reader] = {}  # topic, header

    @property
    def slow_schemas(self) -> Mapping[tuple[str, int], str]:
        """The topics and schema ids of records that fastavro reads or writes, and why it does."""
        used: list[tuple[str, int, Reader | Writer]] = [
            (topic, writer.id, writer) for topic, writer in self._writers.items()
        ]
        used += [(t, HEADER.unpack(h)[1], reader) for (t, h), reader in self._readers.items()]
        return {
            (topic, schema_id): reason
            for topic, schema_id, of in used
            if (reason := of.slow_because) is not None
        }

    # --- writing -----------------------------------------------------------------------

    def serialize(self, topic: str, column: Sequence[Any]) -> Sequence[bytes | None]:
        """The records of a column of values."""
        if isinstance(column, ArrowForm):
            records = self._serialize_arrow(topic, column)
            if records is not None:
                return records
            column = column.objects()
        out: list[bytes | None] = []
        rest = column
        while len(rest):
            writer = self._writers.get(topic) or self._first_writer(topic, rest, len(out))
            if writer is None:
                return [*out, *rest]  # all None
            try:
                writer.write(rest, out)
                break
            except Exception as error:
                rest = column[len(out) :]
                if self._given is not None:
                    raise self._misfit(topic, rest[0], len(out), writer, error) from error
                self._writers[topic] = self._evolved(topic, rest, len(out), writer, error)
        return out

    def _serialize_arrow(self, topic: str, column: ArrowForm) -> Sequence[bytes | None] | None:
        """The records of an Arrow array; None where values have to be looked at."""
        writer = self._writers.get(topic)
        if writer is None and self._given is not None and len(column) >= FEW:
            self._first_writer(topic, column[:1].objects(), 0)
            writer = self._writers.get(topic)
        return None if writer is None else writer.write_arrow(column)

    def _first_writer(self, topic: str, column: Sequence[Any], index: int) -> Writer | None:
        values = [value for value in column if value is not None]
        if not values:
            return None
        index += next(i for i, value in enumerate(column) if value is not None)
        try:
            if self._given is not None:
                writer = self._registered(self._subject(topic, self._given), self._given.text)
            else:
                writer = self._first_inferred(topic, values)
        except SerdeError as error:
            raise self._at(error, topic, index) from error
        self._writers[topic] = writer
        return writer

    def _first_inferred(self, topic: str, values: Sequence[Any]) -> Writer:
        name = self._record_name(topic)
        if self._strategy is SubjectStrategy.TOPIC:
            latest = self._find_latest(f"{topic}-{self._suffix}")
            if latest is not None and self._is_called(latest.schema):
                return latest
        try:
            schema = parse_schema(infer(values, name))
        except SchemaError:  # the first value alone, then evolve up to the one that is wrong
            schema = parse_schema(infer(values[:1], name))
        subject = self._subject(topic, schema)
        if self._strategy is SubjectStrategy.TOPIC:
            return self._registered(subject, schema.text)
        return self._find_latest(subject) or self._registered(subject, schema.text)

    def _is_called(self, schema: Schema) -> bool:
        """Whether the schema has the name that the serde asks for, if it asks for one."""
        return self._name is None or kind(schema.root) != "record" or schema.name == self._name

    def _evolved(
        self, topic: str, rest: Sequence[Any], index: int, writer: Writer, error: Exception
    ) -> Writer:
        """The schema that takes the first of `rest`, which `writer` could not write."""
        subject = self._subject(topic, writer.schema)
        latest = self._registry.latest(subject)
        if latest.id != writer.id:  # somebody else evolved it
            return Writer(latest.id, latest.schema)
        refusal: SerdeError | None = None
        for values in (rest, rest[:1]):
            present = [value for value in values if value is not None]
            try:
                grown = evolve(writer.schema.json, present, self._record_name(topic))
                schema = parse_schema(grown)
                if schema.text != writer.schema.text:
                    return self._registered(subject, schema.text)
            except SchemaError as reason:
                refusal = reason
        if refusal is None:
            raise self._misfit(topic, rest[0], index, writer, error)
        raise self._at(refusal, topic, index) from refusal

    def _registered(self, subject: str, text: str) -> Writer:
        binary(text)  # a schema that nothing can be written with is not registered
        return Writer(self._registry.register(subject, text), parse_schema(text))

    def _misfit(
        self, topic: str, value: object, index: int, writer: Writer, error: Exception
    ) -> SerdeError:
        """The error about a value that the schema does not accept."""
        return SerdeError(
            f"{self._what} cannot write {glimpse(value)} of topic {topic!r} "
            f"with schema id {writer.id}: {str(error) or repr(error)}",
            index,
        )

    def _at(self, error: SerdeError, topic: str, index: int) -> SerdeError:
        """The registry's or a schema's complaint, as one about a record."""
        return type(error)(f"{self._what} cannot write to topic {topic!r}: {error.words}", index)

    # --- subjects ----------------------------------------------------------------------

    def _record_name(self, topic: str) -> str:
        return self._name or record_name(topic)

    def _subject(self, topic: str, schema: Schema) -> str:
        if self._strategy is SubjectStrategy.TOPIC:
            return f"{topic}-{self._suffix}"
        if schema.name is None:
            raise SchemaError("a schema without a name has no subject but the topic's")
        by_record = self._strategy is SubjectStrategy.RECORD
        return schema.name if by_record else f"{topic}-{schema.name}"

    def _find_latest(self, subject: str) -> Writer | None:
        if not self._registry.versions(subject):
            return None
        latest = self._registry.latest(subject)
        return Writer(latest.id, latest.schema)

    # --- reading -----------------------------------------------------------------------

    def deserialize(self, topic: str, column: Sequence[bytes | None]) -> Sequence[Any]:
        """The values of a column of records."""
        readers = self._readers_of(topic, column)
        if len(readers) == 1:
            header, reader = readers.popitem()
            if self._forms and len(column) >= FORM_RECORDS:
                form = reader.read_form(column)
                if form is not None:
                    return form
            return self._read(topic, header, reader, column, range(len(column)))
        return self._read_mixed(topic, readers, column)

    def deserialize_arrow(self, topic: str, column: Sequence[bytes | None]) -> pa.Array | None:
        """The column as an Arrow array, a struct of each record: needs pyarrow.

        None where there is no such array: fastavro must read some record, or say what is wrong with
        it, or two writers' schemas differ in a field's type. Then `deserialize` has the values.
        """
        import pyarrow as pa

        places = _places(column)
        order = [0] * len(column)
        parts: list[pa.Array] = []
        for header, reader in self._readers_of(topic, column).items():
            part = reader.read_arrow([column[place] for place in places[header]])
            if part is None or (parts and part.type != parts[0].type):
                return None
            done = sum(map(len, parts))
            for number, place in enumerate(places[header]):
                order[place] = done + number
            parts.append(part)
        if not parts:
            return pa.nulls(len(column))
        if len(parts[0]) == len(column):
            return parts[0]
        taken = [None if data is None else at for data, at in zip(column, order, strict=True)]
        return pa.concat_arrays(parts).take(pa.array(taken, pa.int64()))

    def _readers_of(self, topic: str, column: Sequence[bytes | None]) -> dict[bytes, Reader]:
        """The readers of a column's records, by their headers."""
        headers = _headers(column)
        # The newest id first: it may bring a newer schema to read all of them as.
        return {
            header: self._readers.get((topic, header)) or self._reader(topic, header, column)
            for header in sorted(headers, reverse=True)
        }

    def _read(
        self,
        topic: str,
        header: bytes,
        reader: Reader,
        column: Sequence[bytes | None],
        places: Sequence[int],
    ) -> list[Any]:
        """The values of records with one header; `places` are their indexes in the whole column."""
        values: list[Any] = []
        try:
            reader.read(column, values)
        except Exception as error:
            index = len(values)
            reason = READ_ERRORS.get(type(error)) or str(error) or repr(error)
            raise SerdeError(
                f"{self._what} cannot read {glimpse(column[index])} of topic {topic!r} "
                f"with schema id {HEADER.unpack(header)[1]}: {reason}",
                places[index],
            ) from error
        return values

    def _read_mixed(
        self, topic: str, readers: dict[bytes, Reader], column: Sequence[bytes | None]
    ) -> list[Any]:
        """Records of several schemas: each schema's together, each value back at its place."""
        values: list[Any] = [None] * len(column)
        failures: list[SerdeError] = []
        for header, own in _places(column).items():
            try:
                mine = [column[place] for place in own]
                found = self._read(topic, header, readers[header], mine, own)
            except SerdeError as error:
                failures.append(error)
                continue
            for place, value in zip(own, found, strict=True):
                values[place] = value
        if failures:
            raise min(failures, key=lambda error: error.index or 0)
        return values

    def _reader(self, topic: str, header: bytes, column: Sequence[bytes | None]) -> Reader:
        """The reader of the records that begin with `header`, for the first time."""
        try:
            if len(header) < HEADER_BYTES or header[0] != MAGIC:
                raise SerdeError("not Confluent's wire format, which begins with 0 and a schema id")
            schema_id = HEADER.unpack(header)[1]
            writer = Writer(schema_id, parse_schema(self._registry.schema(schema_id)))
            wanted = self._reader_schema(topic, writer)
            reader = Reader(writer.schema, wanted, as_dicts=self._as_dicts, fields=self._fields)
        except SerdeError as error:
            heads = (data is not None and data[:HEADER_BYTES] == header for data in column)
            index = next(place for place, found in enumerate(heads) if found)
            what = f"{self._what} cannot read {glimpse(column[index])} of topic {topic!r}"
            raise type(error)(f"{what}: {error.words}", index) from error
        if len(self._readers) >= READERS_MAX:
            self._readers.clear()
        self._readers[topic, header] = reader
        return reader

    def _reader_schema(self, topic: str, writer: Writer) -> Schema:
        """The schema with which records of `writer` are read."""
        if self._given is not None:
            return self._given
        subject = self._subject(topic, writer.schema)
        known = self._latest.get(subject)
        if known is None or writer.id > known.id:
            latest = self._latest[subject] = self._find_latest(subject)
            if known is not None and latest is not None and latest.id != known.id:
                self._readers.clear()  # they give values of the older schema
            known = latest
        return writer.schema if known is None else known.schema


def has_one_header(column: Sequence[bytes | None]) -> bool:
    """Whether all records of a column have one header, so one schema. False also for a column that
    native code finds no header in: it has none, or a record that is too short for one.
    """
    if NATIVE:
        return _common_header(column) is not None
    return len(_all_headers(column)) < 2


def _common_header(column: Sequence[bytes | None]) -> bytes | None:
    """The header that all records have, if native code finds one."""
    head: bytes | None = None
    if NATIVE and isinstance(column, Spans):
        head = common_head_of_spans(column.data, column.starts, column.ends, HEADER_BYTES)
    elif NATIVE:
        head = common_head(column, HEADER_BYTES)
    return head


def _headers(column: Sequence[bytes | None]) -> set[bytes]:
    """The headers of a column's records."""
    head = _common_header(column)
    return _all_headers(column) if head is None else {head}


def _all_headers(column: Sequence[bytes | None]) -> set[bytes]:
    return {data[:HEADER_BYTES] for data in column if data is not None}


def _places(column: Sequence[bytes | None]) -> dict[bytes, list[int]]:
    """The positions of each header's records in a column."""
    places: dict[bytes, list[int]] = {}
    for place, data in enumerate(column):
        if data is not None:
            places.setdefault(data[:HEADER_BYTES], []).append(place)
    return places
