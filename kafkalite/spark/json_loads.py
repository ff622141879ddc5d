"""The option `value.schema`: columns of JSON values as the JSON of a Spark type.            [IO]

Owns   nothing.
Fails  with ConfigError for text that is not the JSON of a struct.
"""

from __future__ import annotations

import json

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kafkalite.errors import ConfigError


def json_struct(schema: str) -> pa.StructType:
    """The columns that the option `value.schema` names."""
    try:
        parsed = StructType.fromJson(json.loads(schema))
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"value.schema {schema!r} is not the JSON of a struct: {error}"
        ) from error
    return pa.struct(list(to_arrow_schema(parsed)))
