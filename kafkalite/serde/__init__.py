"""Objects to bytes and back, a column at a time.                                        [IO]

    from kafkalite.serde import MemoryRegistry, SerdeContext, avro

    codec = avro().open(SerdeContext(MemoryRegistry()))
    column = codec.serialize("orders", [{"id": 7, "state": "shipped"}])
    codec.deserialize("orders", column)     # [{"id": 7, "state": "shipped"}]

Owns   the names that users of serdes import; each module below says the rest.
"""

from kafkalite.serde.avro import AvroSerde, avro
from kafkalite.serde.json import JsonSerde, json
from kafkalite.serde.msgpack import MsgpackSerde, msgpack
from kafkalite.serde.primitives import (
    BytesSerde,
    Float64Serde,
    Int64Serde,
    StringSerde,
    bytes_,
    float64,
    int64,
    string,
)
from kafkalite.serde.registry import MemoryRegistry, RegisteredSchema, SchemaRegistry
from kafkalite.serde.serde import Codec, Encoder, Serde, SerdeContext, Serializer
from kafkalite.serde.windowed import WindowedSerde, windowed

__all__ = [
    "AvroSerde",
    "BytesSerde",
    "Codec",
    "Encoder",
    "Float64Serde",
    "Int64Serde",
    "JsonSerde",
    "MemoryRegistry",
    "MsgpackSerde",
    "RegisteredSchema",
    "SchemaRegistry",
    "Serde",
    "SerdeContext",
    "Serializer",
    "StringSerde",
    "WindowedSerde",
    "avro",
    "bytes_",
    "float64",
    "int64",
    "json",
    "msgpack",
    "string",
    "windowed",
]
