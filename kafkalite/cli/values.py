"""The text forms of keys and values, for input and for output.                           [IO]

    kind      as text, and in JSON lines         in the record
    string    UTF-8                              the same bytes
    bytes     the same bytes                     the same bytes
    json      a JSON document                    JSON
    avro      a JSON document                    Avro, its schema in the registry
    msgpack   a JSON document                    MessagePack
    int64     42                                 8 bytes, big endian
    float64   1.5                                8 bytes, IEEE 754
    hex       00ff                               these bytes
    base64    AP8=                               these bytes

A key may also be that of a window, which is only read: `windowed:1h`, or `windowed` for sessions.
It is shown as `{"key": "JFK", "start": 1357000000000, "end": 1357003600000}`.

Null stands for itself in JSON lines. A `string` that is not text is shown with escapes (`guesses`);
a JSON line, which cannot hold it, has `value_base64` instead.

Fails  with SerdeError whose `index` is the first record of the column that failed;
       typer.BadParameter for a name that is not a kind.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import typer

from kafkalite.cli.guesses import readable
from kafkalite.cli.output import to_json
from kafkalite.core.nearest import did_you_mean
from kafkalite.errors import ConfigError

if TYPE_CHECKING:
    from kafkalite.serde.registry import SchemaRegistry
    from kafkalite.serde.serde import Codec
    from kafkalite.serde.windowed import WindowedSerde


class Kind(StrEnum):
    """How a record's key or value is understood."""

    string = "string"
    bytes = "bytes"
    json = "json"
    avro = "avro"
    msgpack = "msgpack"
    int64 = "int64"
    float64 = "float64"
    hex = "hex"
    base64 = "base64"


KINDS: Final = ", ".join(Kind)
KEY_NAMES: Final = (*Kind, "windowed:SIZE", "windowed")
DOCUMENTS: Final = frozenset({Kind.json, Kind.avro, Kind.msgpack})


class Raw(bytes):
    """Bytes that are printed as they are, whether they are text or not."""


def parse_key(name: str, flag: str) -> Kind | WindowedSerde:
    """The kind that `--key` names, or the serde for keys of windows."""
    from kafkalite.serde.primitives import string
    from kafkalite.serde.windowed import named_windowed

    try:
        found = named_windowed(name, string())
    except ConfigError as error:
        raise typer.BadParameter(f"'{name}': {error}", param_hint=flag) from error
    if found is not None:
        return found
    if name not in Kind.__members__:
        hint = did_you_mean(name, KEY_NAMES)
        raise typer.BadParameter(
            f"'{name}' is not one of {', '.join(KEY_NAMES)}{hint}", param_hint=flag
        )
    return Kind(name)


def open_key_codec(key: Kind | WindowedSerde, registry: SchemaRegistry | None) -> Codec | None:
    """The codec for keys; None for text, which `records_out` reads by itself."""
    if isinstance(key, Kind):
        return None if key is Kind.string else open_codec(key, registry, is_key=True)
    from kafkalite.serde.serde import SerdeContext

    return _WindowsAsJson(key.open(SerdeContext(is_key=True)))


class _WindowsAsJson:
    """Reads keys of windows as the JSON objects that stand for them."""

    def __init__(self, windows: Codec) -> None:
        self._windows = windows

    def serialize(self, topic: str, column: Sequence[Any]) -> Sequence[bytes | None]:
        """The bytes of keys that are `Windowed`."""
        return self._windows.serialize(topic, column)

    def deserialize(self, topic: str, column: Sequence[bytes | None]) -> Sequence[Any]:
        """The key and the bounds of its window, in epoch ms."""
        windows = self._windows.deserialize(topic, column)
        return [window and window._asdict() for window in windows]


def open_codec(
    kind: Kind,
    registry: SchemaRegistry | None = None,
    *,
    is_key: bool = False,
    schema: str | None = None,
) -> Codec:
    """The codec of a kind. `schema` is the path of an .avsc file."""
    from kafkalite import serde
    from kafkalite.serde.serde import EachRecord, SerdeContext

    if kind is Kind.avro:
        return serde.avro(schema=schema).open(SerdeContext(registry, is_key, as_dicts=True))
    if kind is Kind.json:
        return serde.json().open(SerdeContext())
    if kind is Kind.msgpack:
        return serde.msgpack().open(SerdeContext())
    if kind is Kind.int64:
        return serde.int64().open(SerdeContext())
    if kind is Kind.float64:
        return serde.float64().open(SerdeContext())
    if kind is Kind.hex:
        return EachRecord("hex", bytes.fromhex, bytes.hex)
    if kind is Kind.base64:
        return EachRecord("base64", _from_base64, _to_base64)
    if kind is Kind.bytes:
        return EachRecord("bytes", _encoded, Raw)
    return EachRecord("string", _encoded, bytes)


def open_registry(
    bootstrap_servers: str, *kinds: Kind | WindowedSerde
) -> AbstractContextManager[Any]:
    """The registry in the log if one of the kinds needs it, else None."""
    if Kind.avro not in kinds:
        return nullcontext()
    from kafkalite.serde.registry_log import LogRegistry

    return LogRegistry(bootstrap_servers)


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _encoded(value: Any) -> bytes:
    """The bytes of a string; other values are written as JSON."""
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bytes) else to_json(value)


def reader_of_text(kind: Kind) -> Callable[[bytes], Any]:
    """The function from a piece of text to the Python value that the kind's codec writes."""
    if kind in (Kind.string, Kind.bytes):
        return bytes
    if kind in DOCUMENTS:
        import orjson

        return orjson.loads
    if kind is Kind.int64:
        return int
    return float if kind is Kind.float64 else bytes.decode


def text_of(value: Any) -> bytes:
    """A decoded key or value as text: strings as they are, other values as JSON."""
    if isinstance(value, bytes):
        return value if isinstance(value, Raw) else readable(value)
    return value.encode() if isinstance(value, str) else to_json(value)


def json_columns(column: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """A decoded column as JSON can hold it, and which entries had to become base64 for it."""
    plain: list[Any] = []
    bent: list[int] = []
    for index, value in enumerate(column):
        if isinstance(value, bytes):
            try:
                value = value.decode()
            except UnicodeDecodeError:
                value = _to_base64(value)
                bent.append(index)
        plain.append(value)
    return plain, bent
