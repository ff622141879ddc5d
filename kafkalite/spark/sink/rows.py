"""Rows of Spark as records, by `columns.RECORDS`.                                           [P]

    key, value    binary or string; with a format also structs, lists, numbers
    topic         string, unless an option names the topic
    partition     int; null: by the key, as Kafka's producer does it
    timestamp     the record's own; null or no column: the time of writing
    headers       array of (key, value)

Other columns are ignored, as by the official connector. No object is made of a key or a value that
is bytes already, or where native code writes the format.

Owns   nothing.
Fails  with ConfigError for a row without a topic, SerdeError for values without a form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from kafkalite.core.protocol.record_codec import Int64s, Spans
from kafkalite.core.types import Columns
from kafkalite.errors import ConfigError
from kafkalite.spark.sink.columns import MILLISECONDS, RECORDS

if TYPE_CHECKING:
    from kafkalite.serde.serde import Codec


def records_of(
    batch: pa.RecordBatch, topic: str | None, codecs: Mapping[str, Codec[Any]], now_ms: int
) -> Iterator[pa.RecordBatch]:
    """The rows as records, by RECORDS. ConfigError for a row without a topic.

    `topic` is None where a column has each row's; `codecs` write the columns `key` and `value` that
    are no bytes yet, each topic's with a schema of its own; `now_ms` is the timestamp of rows
    without one.
    """
    if topic is not None:
        indices = pa.py_buffer(bytes(4 * batch.num_rows))
        places = pa.Array.from_buffers(pa.int32(), batch.num_rows, [None, indices])
        topics = pa.DictionaryArray.from_arrays(places, pa.array([topic], pa.string()))
    elif batch.column("topic").null_count:
        raise ConfigError("a row has no topic: its column 'topic' is null")
    else:
        topics = batch.column("topic").dictionary_encode()
    if not codecs or len(topics.dictionary) == 1:
        yield _records(batch, topics, codecs, now_ms)
        return
    for number in range(len(topics.dictionary)):
        rows = batch.filter(pc.equal(topics.indices, number))
        yield _records(rows, rows.column("topic").dictionary_encode(), codecs, now_ms)


def _records(
    batch: pa.RecordBatch, topics: pa.DictionaryArray, codecs: Mapping[str, Codec[Any]], now_ms: int
) -> pa.RecordBatch:
    """Rows as records; of one topic where there are codecs."""
    count = batch.num_rows
    columns = {name: batch.column(name) for name in batch.schema.names if name in RECORDS.names}
    columns["topic"] = topics
    for part, codec in codecs.items():
        if part in columns:
            columns[part] = _encoded(columns[part], topics.dictionary[0].as_py(), codec)
    now = pa.scalar(now_ms, pa.int64()).cast(MILLISECONDS)
    if "timestamp" in columns:  # Spark's are microseconds
        times = columns["timestamp"].cast(MILLISECONDS, safe=False)
        columns["timestamp"] = pc.fill_null(times, now)
    else:
        columns["timestamp"] = pa.repeat(now, count)
    arrays = [
        columns[field.name].cast(field.type) if field.name in columns
        else pa.nulls(count, field.type)
        for field in RECORDS
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(arrays, schema=RECORDS)


def _encoded(column: pa.Array, topic: str, codec: Codec[Any]) -> pa.Array:
    """A column as the bytes that a codec writes."""
    from kafkalite.core.arrow import binary
    from kafkalite.serde.arrow_form import ArraySource, ArrowForm

    return binary(codec.serialize(topic, ArrowForm(ArraySource(column))))


def by_topic(records: pa.RecordBatch) -> Iterator[tuple[str, Columns, list[int] | None]]:
    """Records to send: a topic, its columns, and their partitions (None: by key)."""
    topics = records.column("topic")
    names = topics.dictionary.to_pylist()
    for number, name in enumerate(names):
        of_topic = records if len(names) == 1 else records.filter(pc.equal(topics.indices, number))
        for part in _by_choice(of_topic):
            numbers = part.column("partition")
            yield name, _columns(part), None if numbers.null_count else numbers.to_pylist()


def _by_choice(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The records whose partition is chosen, and then the others; neither without any. A batch that
    has one kind is not copied.
    """
    numbers = records.column("partition")
    if numbers.null_count in (0, len(numbers)):
        if len(numbers):
            yield records
        return
    is_chosen = numbers.is_valid()
    yield records.filter(is_chosen)
    yield records.filter(pc.invert(is_chosen))


def _columns(records: pa.RecordBatch) -> Columns:
    keys, headers = records.column("key"), records.column("headers")
    count = records.num_rows
    return Columns(
        [None] * count if keys.null_count == count else _spans(keys),
        _spans(records.column("value")),
        Int64s.of_buffer(_numbers(records.column("timestamp"))),
        None,
        None if headers.null_count == count else _headers(headers),
    )


def _numbers(column: pa.Array) -> memoryview:
    """The buffer of a column of 64-bit integers without nulls."""
    data = column.buffers()[1].slice(8 * column.offset, 8 * len(column))
    return memoryview(data).cast("B").cast("q")


def _spans(column: pa.Array) -> Sequence[bytes | None]:
    """A column of bytes and None that looks into Arrow's own buffers."""
    first, count = column.offset, len(column)
    if column.null_count and first % 8:  # the bitmap does not begin at a byte
        return list(column.to_pylist())
    validity, offsets, data = column.buffers()
    ends = memoryview(offsets.slice(4 * first, 4 * (count + 1))).cast("B").cast("i")
    valid = None if not column.null_count else validity.slice(first // 8, (count + 7) // 8)
    return Spans.of_offsets(ends, data or b"", valid)


def _headers(column: pa.Array) -> list[tuple[tuple[str, bytes | None], ...]]:
    return [tuple((each["key"], each["value"]) for each in row or ()) for row in column.to_pylist()]
