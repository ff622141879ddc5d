"""What a type checker refuses of serdes: one error at each line marked with its text."""

from __future__ import annotations

from kafkalite.core.types import Windowed
from kafkalite.serde import Encoder, Serde, SerdeContext, Serializer, int64, json, string, windowed

texts: Serde[str] = int64()  # E: expression has type "Serde[int]", variable has type "Serde[str]"
windows: Serde[Windowed[int]] = windowed(string(), "1h")  # E: expected "Serde[int]"
maker: Serde[str] = string  # E: variable has type "Serde[str]"
encoder: Encoder[int] = string().open(SerdeContext())  # E: variable has type "Encoder[int]"
wide: Serializer[str | int] = string()  # E: variable has type "Serializer[str | int]"
orders: Serde[dict[str, int]] = json()
orders.open(SerdeContext()).serialize("t", ["a"])  # E: List item 0 has incompatible type "str"
key: int = Windowed("a", 0, 1).key  # E: expression has type "str", variable has type "int"
