"""Lines of text or JSON as columns of records.                                           [IO]

    text    key<separator>value, or a value alone, a record each line
    json    {"key": …, "value": …, "headers": …, "timestamp": …, "partition": …}, all optional;
            lines of `consume --json` can be read; their topic and offset are ignored

Owns   the bytes of a line that has not ended yet, LINE_BYTES_MAX at most.
Fails  with ConfigError naming the line's number.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from kafkalite.cli.places import parse_time_ms
from kafkalite.cli.values import Kind, reader_of_text
from kafkalite.core.nearest import did_you_mean
from kafkalite.core.types import Columns, Headers
from kafkalite.errors import ConfigError, SerdeError
from kafkalite.serde.glimpse import glimpse
from kafkalite.serde.serde import Codec

LINE_BYTES_MAX: Final = 64 << 20
PARTITION_MAX: Final = (1 << 31) - 1
FIELDS: Final = frozenset(
    {"key", "value", "key_base64", "value_base64", "headers", "timestamp", "partition"}
)
IGNORED: Final = frozenset({"topic", "offset", "time"})  # the place of a record, not its content


@dataclass(frozen=True, slots=True)
class Shape:
    """How lines are to be read."""

    topic: str
    key_kind: Kind
    value_kind: Kind
    key_codec: Codec
    value_codec: Codec
    is_json: bool = False
    key_separator: bytes | None = None
    key: bytes | None = None  # of records without a key
    null: bytes | None = None  # the text that stands for null
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """Records; `partitions[i]` is None where record i goes where its key says."""

    columns: Columns
    partitions: Sequence[int | None] | None = None


@dataclass(slots=True)
class LineReader:
    """Bytes in, whole lines out."""

    name: str
    number: int = 0  # of lines given so far
    _rest: list[bytes] = field(default_factory=list)
    _rest_bytes: int = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` ends, without their line ends."""
        first, newline, tail = data.partition(b"\n")
        if not newline:
            self._keep(data)
            return []
        lines = [b"".join([*self._rest, first]), *tail.split(b"\n")]
        self._rest, self._rest_bytes = [], 0
        self._keep(lines.pop())
        self.number += len(lines)
        return lines

    def end(self) -> list[bytes]:
        """The last line, if it has no line end."""
        last = b"".join(self._rest)
        self._rest, self._rest_bytes = [], 0
        if not last:
            return []
        self.number += 1
        return [last]

    def _keep(self, data: bytes) -> None:
        if data:
            self._rest.append(data)
            self._rest_bytes += len(data)
        if self._rest_bytes > LINE_BYTES_MAX:
            raise ConfigError(
                f"{self.name}, line {self.number + 1}: longer than {LINE_BYTES_MAX} bytes"
            )


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of records: a source and the line of each record, for messages."""

    source: str
    lines: Sequence[int]

    def fault(self, index: int, why: object) -> ConfigError:
        """The error of record `index`."""
        return ConfigError(f"{self.source}, line {self.lines[index]}: {why}")


def parse_lines(shape: Shape, lines: list[bytes], source: str, first: int, now_ms: int) -> Batch:
    """The records of lines; `first` is the number of the first one, for messages."""
    if shape.is_json:
        return _parse_json(shape, lines, source, first, now_ms)
    origin = Origin(source, range(first, first + len(lines)))
    keys: list[Any] = [None] * len(lines)
    values: list[Any] = lines
    if shape.key_separator is not None:
        keys, values = _split(shape.key_separator, lines, origin)
    if shape.null is not None:
        keys = [None if key == shape.null else key for key in keys]
        values = [None if value == shape.null else value for value in values]
    columns = Columns(
        _with_default(shape, _from_text(shape.key_kind, shape.key_codec, keys, shape, origin)),
        _from_text(shape.value_kind, shape.value_codec, values, shape, origin),
        [now_ms] * len(lines),
        headers=[shape.headers] * len(lines) if shape.headers else None,
    )
    return Batch(columns)


def _split(separator: bytes, lines: list[bytes], origin: Origin) -> tuple[list[Any], list[Any]]:
    """Keys and values of lines; the first separator of a line counts."""
    parts = [line.partition(separator) for line in lines]
    for index, (_, found, _) in enumerate(parts):
        if not found:
            raise origin.fault(index, f"the line has no key separator {separator.decode()!r}")
    return [key for key, _, _ in parts], [value for _, _, value in parts]


def _from_text(
    kind: Kind, codec: Codec, column: list[Any], shape: Shape, origin: Origin
) -> Sequence[bytes | None]:
    """The bytes of pieces of text, as their kind has them."""
    if kind is Kind.string:
        return column
    read = reader_of_text(kind)
    values: list[Any] = []
    for index, text in enumerate(column):
        try:
            values.append(None if text is None else read(text))
        except ValueError as error:
            raise origin.fault(index, _unreadable(kind, text, error)) from None
    return _serialized(codec, shape.topic, values, origin)


def _unreadable(kind: Kind, text: bytes, error: ValueError) -> str:
    """Why a piece of text is no value of its kind."""
    if isinstance(error, orjson.JSONDecodeError):
        return f"not valid JSON: {error.msg}"
    expected = "a number" if kind is Kind.float64 else "a whole number"
    return f"{glimpse(text.decode(errors='backslashreplace'))} is not {expected}"


def _serialized(
    codec: Codec, topic: str, values: Sequence[Any], origin: Origin
) -> Sequence[bytes | None]:
    try:
        return codec.serialize(topic, values)
    except SerdeError as error:
        if error.index is None:
            raise
        raise origin.fault(error.index, error.words) from None


def _with_default(shape: Shape, keys: Sequence[bytes | None]) -> Sequence[bytes | None]:
    if shape.key is None:
        return keys
    return [shape.key if key is None else key for key in keys]


# ---- JSON lines --------------------------------------------------------------------------------


def _parse_json(shape: Shape, lines: list[bytes], source: str, first: int, now_ms: int) -> Batch:
    documents: list[Mapping[str, Any]] = []
    numbers: list[int] = []
    for number, line in enumerate(lines, first):
        if line.strip():
            documents.append(_document(line, source, number))
            numbers.append(number)
    origin = Origin(source, numbers)
    headers = [_headers(shape, d, i, origin) for i, d in enumerate(documents)]
    partitions = [_partition(d, i, origin) for i, d in enumerate(documents)]
    columns = Columns(
        _with_default(shape, _column(shape.key_codec, "key", documents, shape, origin)),
        _column(shape.value_codec, "value", documents, shape, origin),
        [_timestamp(d, now_ms, i, origin) for i, d in enumerate(documents)],
        headers=headers if any(headers) else None,
    )
    return Batch(columns, partitions if any(p is not None for p in partitions) else None)


def _document(line: bytes, source: str, number: int) -> Mapping[str, Any]:
    origin = Origin(source, [number])
    try:
        document = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise origin.fault(0, f"not valid JSON: {error.msg}") from None
    if not isinstance(document, dict):
        raise origin.fault(0, f"expected a JSON object with fields of {', '.join(sorted(FIELDS))}")
    for name in document.keys() - FIELDS - IGNORED:
        hint = did_you_mean(name, FIELDS) or f"; fields are {', '.join(sorted(FIELDS))}"
        raise origin.fault(0, f"unknown field '{name}'{hint}")
    return document


def _column(
    codec: Codec, name: str, documents: list[Mapping[str, Any]], shape: Shape, origin: Origin
) -> Sequence[bytes | None]:
    """The bytes of one field; base64 fields are already bytes."""
    values = [document.get(name) for document in documents]
    column = _serialized(codec, shape.topic, values, origin)
    given = [i for i, document in enumerate(documents) if f"{name}_base64" in document]
    if not given:
        return column
    mixed = list(column)
    for index in given:
        try:
            mixed[index] = base64.b64decode(documents[index][f"{name}_base64"], validate=True)
        except (ValueError, TypeError) as error:
            raise origin.fault(index, f"{name}_base64 is not valid base64: {error}") from None
    return mixed


def _timestamp(document: Mapping[str, Any], now_ms: int, index: int, origin: Origin) -> int:
    given = document.get("timestamp")
    if given is None:
        return now_ms
    time_ms = parse_time_ms(given) if isinstance(given, str) else given
    if isinstance(time_ms, bool) or not isinstance(time_ms, int) or not -1 <= time_ms < 1 << 63:
        raise origin.fault(index, f"timestamp {given!r} is neither epoch ms nor an ISO time")
    return time_ms


def _partition(document: Mapping[str, Any], index: int, origin: Origin) -> int | None:
    given = document.get("partition")
    wrong = isinstance(given, bool) or not isinstance(given, int | None)
    if wrong or (given is not None and not 0 <= given <= PARTITION_MAX):
        raise origin.fault(index, f"partition {given!r} is not a partition number")
    return given


def _headers(shape: Shape, document: Mapping[str, Any], index: int, origin: Origin) -> Headers:
    """From an object, or from a list of [name, value] where a name comes twice."""
    given = document.get("headers")
    if given is None:
        return shape.headers
    pairs = list(given.items()) if isinstance(given, dict) else given
    headers = list(shape.headers)
    for pair in pairs if isinstance(pairs, list) else [None]:
        if not (
            isinstance(pair, list | tuple)
            and len(pair) == 2
            and isinstance(pair[0], str)
            and isinstance(pair[1], str | None)
        ):
            raise origin.fault(index, "headers must be an object or a list of [name, text or null]")
        headers.append((pair[0], None if pair[1] is None else pair[1].encode()))
    return tuple(headers)
