"""Columns of records as lines: their values, JSON with all that is known, or a template.    [IO]

    text        the value; bytes that are not text are shown with escapes
    json        {"topic": …, "partition": …, "offset": …, "timestamp": …, "key": …, "value": …,
                 "headers": [[name, value], …]}
    template    "{key}\\t{value}" and the like, with FIELDS

Owns   how a record looks. `produce --format json` reads what the JSON form writes.
Fails  with ConfigError for a wrong template; with SerdeError, naming the record, for bytes that
       --key or --value cannot read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from string import Formatter
from typing import Any, Final

from kafkalite.cli.guesses import is_text, readable
from kafkalite.cli.output import show_time, to_json
from kafkalite.cli.values import json_columns, text_of
from kafkalite.core.types import Columns, Headers, TopicPartition
from kafkalite.errors import ConfigError, SerdeError
from kafkalite.serde.serde import Codec

FIELDS: Final = ("topic", "partition", "offset", "timestamp", "time", "key", "value", "headers")
ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}

Lines = Callable[[TopicPartition, Columns], bytes]


def decoded(
    tp: TopicPartition, columns: Columns, key_codec: Codec | None, value_codec: Codec | None
) -> Columns:
    """The columns with keys and values as Python values. SerdeError names the record."""
    return Columns(
        _decoded(tp, columns, columns.keys, key_codec, "key"),
        _decoded(tp, columns, columns.values, value_codec, "value"),
        columns.timestamps,
        columns.offsets,
        columns.headers,
    )


def _decoded(
    tp: TopicPartition, columns: Columns, column: Sequence[Any], codec: Codec | None, what: str
) -> Sequence[Any]:
    if codec is None:
        return column
    try:
        return codec.deserialize(tp.topic, column)
    except SerdeError as error:
        if error.index is None or columns.offsets is None:
            raise
        offset = columns.offsets[error.index]
        raise error.of_record(f"{tp}, offset {offset}, {what}") from None


def text_lines(null: bytes) -> Lines:
    """The values, a line each."""

    def lines(tp: TopicPartition, columns: Columns) -> bytes:
        if all(type(value) is bytes for value in columns.values):
            text = b"\n".join(columns.values)
            if is_text(text):  # each value is: no character of UTF-8 spans a line end
                return text + b"\n"
        return b"".join(
            (null if value is None else text_of(value)) + b"\n" for value in columns.values
        )

    return lines


def json_lines(tp: TopicPartition, columns: Columns) -> bytes:
    """A JSON document for each record."""
    keys, bent_keys = json_columns(columns.keys)
    values, bent_values = json_columns(columns.values)
    offsets, headers = columns.offsets or (), columns.headers or [()] * len(columns)
    documents: list[dict[str, Any]] = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "offset": offset,
            "timestamp": timestamp,
            "key": key,
            "value": value,
            "headers": json_headers(of_record),
        }
        for offset, timestamp, key, value, of_record in zip(
            offsets, columns.timestamps, keys, values, headers, strict=True
        )
    ]
    for name, bent in (("key", bent_keys), ("value", bent_values)):
        for index in bent:
            documents[index][f"{name}_base64"] = documents[index].pop(name)
    return b"".join(to_json(document) + b"\n" for document in documents)


def json_headers(headers: Headers) -> list[list[str | None]]:
    """Names and values; bytes that are not UTF-8 are shown as escapes."""
    return [
        [name, None if value is None else value.decode(errors="backslashreplace")]
        for name, value in headers
    ]


def template_lines(template: str, null: bytes) -> Lines:
    """Lines made by a template. A line end is added if the template has none."""
    text = _unescaped(template)
    text = text if text.endswith("\n") else text + "\n"
    try:
        parsed = list(Formatter().parse(text))
    except ValueError as error:
        raise ConfigError(f"--format {template!r}: {error}") from None
    parts: list[tuple[bytes, str | None]] = []
    for literal, name, spec, conversion in parsed:
        if name is not None and (name not in FIELDS or spec or conversion):
            known = ", ".join(f"{{{field}}}" for field in FIELDS)
            raise ConfigError(f"--format {template!r}: no field {{{name}}}; fields are {known}")
        parts.append((literal.encode(), name))

    def lines(tp: TopicPartition, columns: Columns) -> bytes:
        fields = _fields(tp, columns, null, {name for _, name in parts if name})
        return b"".join(
            literal + (fields[name][index] if name else b"")
            for index in range(len(columns))
            for literal, name in parts
        )

    return lines


def _unescaped(template: str) -> str:
    return re.sub(r"\\(.)", lambda m: ESCAPES.get(m[1], m[0]), template, flags=re.DOTALL)


def _fields(
    tp: TopicPartition, columns: Columns, null: bytes, wanted: set[str]
) -> dict[str, list[bytes]]:
    """The texts of the wanted fields of every record."""
    count = len(columns)
    makers: dict[str, Callable[[], list[bytes]]] = {
        "topic": lambda: [tp.topic.encode()] * count,
        "partition": lambda: [b"%d" % tp.partition] * count,
        "offset": lambda: [b"%d" % offset for offset in columns.offsets or ()],
        "timestamp": lambda: [b"%d" % timestamp for timestamp in columns.timestamps],
        "time": lambda: [show_time(timestamp).encode() for timestamp in columns.timestamps],
        "key": lambda: [null if key is None else text_of(key) for key in columns.keys],
        "value": lambda: [null if value is None else text_of(value) for value in columns.values],
        "headers": lambda: [_text_headers(h) for h in columns.headers or [()] * count],
    }
    return {name: makers[name]() for name in wanted}


def _text_headers(headers: Headers) -> bytes:
    return b",".join(name.encode() + b"=" + readable(value or b"") for name, value in headers)
