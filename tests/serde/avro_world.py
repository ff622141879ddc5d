"""What tests of Avro share: schemas, and a registry with codecs."""

from __future__ import annotations

from typing import Any

from kafkalite.serde import MemoryRegistry, SerdeContext, avro
from kafkalite.serde.serde import Codec

INT = ["null", "int"]


def record(*fields: tuple[Any, ...], name: str = "Flight") -> dict[str, Any]:
    """Fields are (name, type) or (name, type, default)."""
    described = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
    return {"type": "record", "name": name, "fields": described}


V1 = record(("origin", "string"), ("delay", INT, None))
V2 = record(("origin", "string"), ("delay", INT, None), ("km", "double", 0.0))


class World:
    """A registry and codecs that share it, as programs do."""

    def __init__(self) -> None:
        self.registry = MemoryRegistry()

    def codec(self, *args: Any, is_key: bool = False, **more: Any) -> Codec:
        return avro(*args, **more).open(SerdeContext(self.registry, is_key=is_key))

    def latest(self, subject: str) -> Any:
        return self.registry.latest(subject).schema.json
