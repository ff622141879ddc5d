"""Serdes as a type checker sees them: `mypy --strict` finds no error here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, assert_type

from kafkalite.core.types import Columns, Windowed
from kafkalite.serde import (
    Codec,
    Encoder,
    Serde,
    SerdeContext,
    Serializer,
    avro,
    bytes_,
    float64,
    int64,
    json,
    msgpack,
    string,
    windowed,
)

CONTEXT = SerdeContext()


class Order(TypedDict):
    id: int
    user: str


@dataclass(frozen=True)
class Upper:
    """A serde of somebody's own."""

    def open(self, context: SerdeContext) -> Codec[str]:
        """Text, as any other."""
        return string().open(context)


texts: Serde[str] = string()
numbers: Serde[int] = int64()
floats: Serde[float] = float64()
blobs: Serde[bytes] = bytes_()
own: Serde[str] = Upper()
assert_type(string().open(CONTEXT), Codec[str])

# A window's key has the type of the key within.
assert_type(windowed(string(), "1h"), Serde[Windowed[str]])
windows: Serde[Windowed[str]] = windowed(string(), "1h")
assert_type(Windowed("a", 0, 1).key, str)

# Their values are told by an annotation.
assert_type(json(), Serde[Any])
orders: Serde[Order] = json()
flights: Serde[Mapping[str, Any]] = avro()
lists: Serde[list[int]] = msgpack()

# None is the null record, and a serde of wider values can write narrower ones.
encoder: Encoder[str | None] = string().open(CONTEXT)
writes_null: Serializer[str | None] = string()
writes_dicts: Serializer[dict[str, int]] = flights

# Parameters that are not given are Any.
unsaid: Serde = string()
columns: Columns[str, int] = Columns(["a"], [1], [0])
assert_type(columns.where([True]).values[0], int)
