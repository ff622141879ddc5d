"""Topologies in Python over the log: what users import.                                  [IO]

    from kafkalite.streams import Streams, avro, count, string, tumbling

Owns   the names that users import.
"""

from kafkalite.core.types import Columns, Windowed
from kafkalite.serde import Serde, avro, bytes_, float64, int64, json, msgpack, string, windowed
from kafkalite.streams.aggregates import (
    Aggregate,
    collect,
    collect_set,
    count,
    first,
    fold,
    last,
    max_,
    mean,
    min_,
    reduce_,
    sum_,
    top_k,
)
from kafkalite.streams.app import Streams
from kafkalite.streams.driver import TopologyTestDriver
from kafkalite.streams.expressions.expression import (
    Expression,
    coalesce,
    col,
    key,
    lit,
    struct,
    timestamp,
    value,
    when,
)
from kafkalite.streams.expressions.sides import left, right
from kafkalite.streams.global_table import GlobalTable
from kafkalite.streams.groups import Cogrouped, Grouped
from kafkalite.streams.local.queries import StoreUnavailable
from kafkalite.streams.matching import repeated
from kafkalite.streams.processors import (
    KeyValueStore,
    Processor,
    ProcessorContext,
    WindowStore,
    store,
)
from kafkalite.streams.record import Record
from kafkalite.streams.sketches import approx_distinct, quantiles
from kafkalite.streams.stream import Stream
from kafkalite.streams.table import Table
from kafkalite.streams.windows import hopping, session, sliding, tumbling, unlimited

__all__ = [
    "Aggregate",
    "Cogrouped",
    "Columns",
    "Expression",
    "GlobalTable",
    "Grouped",
    "KeyValueStore",
    "Processor",
    "ProcessorContext",
    "Record",
    "Serde",
    "StoreUnavailable",
    "Stream",
    "Streams",
    "Table",
    "TopologyTestDriver",
    "WindowStore",
    "Windowed",
    "approx_distinct",
    "avro",
    "bytes_",
    "coalesce",
    "col",
    "collect",
    "collect_set",
    "count",
    "first",
    "float64",
    "fold",
    "hopping",
    "int64",
    "json",
    "key",
    "last",
    "left",
    "lit",
    "max_",
    "mean",
    "min_",
    "msgpack",
    "quantiles",
    "reduce_",
    "repeated",
    "right",
    "session",
    "sliding",
    "store",
    "string",
    "struct",
    "sum_",
    "timestamp",
    "top_k",
    "tumbling",
    "unlimited",
    "value",
    "when",
    "windowed",
]
