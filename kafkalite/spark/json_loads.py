"""Infers the schema of JSON values for a load, in a Spark job of its own.                    [IO]

The job reads the values of the load's ranges and infers their columns (`json_columns`). The load
then reads the values again as rows. The schema is passed on as the JSON of a Spark type.

Owns   nothing.
Fails  with SerdeError naming topic, partition and the offset from which on the values have no
       common schema; with ConfigError for text that is not the JSON of a struct.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import orjson
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from kafkalite.columnar.json_columns import Seen, columns_of, row_reader
from kafkalite.errors import ConfigError, SerdeError
from kafkalite.serde.serde import Codec, EachRecord

SEEN_SCHEMA: Final = "seen string"


def value_schema(spark: SparkSession, options: Mapping[str, str], table: pa.StructType) -> str:
    """The option `value.schema` for the values that `options` read, and for the table's columns."""
    rows = (
        spark.read.format("kafkalite")
        .options(**{**options, "value.format": "binary", "key.format": "binary"})
        .load()
        .select("topic", "partition", "offset", "value")
        .mapInArrow(_infer, SEEN_SCHEMA)
        .collect()
    )
    seen = Seen()
    for row in rows:
        seen.merge(json.loads(row.seen))
    columns = columns_of(seen.shape, table)
    row_reader(columns)  # ConfigError for columns that JSON has no values for
    return from_arrow_schema(pa.schema(list(columns))).json()


def _infer(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in a Spark task: what the values of its range hold."""
    seen = Seen()
    for batch in batches:
        try:
            seen.add(batch.column("value").to_pylist())
        except SerdeError as error:
            topic, partition, offset = (
                batch.column(name)[0].as_py() for name in ("topic", "partition", "offset")
            )
            raise error.of_record(f"{topic}-{partition} from offset {offset}") from None
    yield pa.RecordBatch.from_pydict({"seen": [json.dumps(seen.shape)]})


def json_struct(schema: str) -> pa.StructType:
    """The columns that the option `value.schema` names."""
    try:
        parsed = StructType.fromJson(json.loads(schema))
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"value.schema {schema!r} is not the JSON of a struct: {error}"
        ) from error
    return pa.struct(list(to_arrow_schema(parsed)))


def json_rows(columns: pa.StructType) -> Codec:
    """Reads values as rows of these columns."""
    return EachRecord("json", orjson.dumps, row_reader(columns))
