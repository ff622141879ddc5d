"""The sink of a topology: packets become the records of an epoch's one transaction.        [IO]

A worker unpacks packets into the files that the exactly-once sink stages; the driver sends the
files of all workers in one transaction, with the record of the epoch. No record is a row of Spark.

Owns   nothing between calls.
Fails  as kafkalite/spark/sink does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructType

from kafkalite.spark.sink.columns import HEADERS, MILLISECONDS, RECORDS
from kafkalite.spark.sink.writers import Sink, StreamWriter
from kafkalite.spark.topology.buckets import BY_KEY
from kafkalite.spark.topology.moving import check_stay
from kafkalite.spark.topology.packets import unpack
from kafkalite.streams.local.holder import Holder

SINK: Final = "kafkalite-topology-sink"
STAY: Final = "stay"  # an option: for which stay on Spark the query runs
COLUMNS: Final = (
    StructType()
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("key", BinaryType())
    .add("value", BinaryType())
)


def stay_option(application_id: str, holder: Holder) -> str:
    """The value of the option STAY."""
    return json.dumps({"application_id": application_id, "holder": holder.encode()})


class PacketSink(Sink):
    """A sink whose rows are packets. With the option STAY it writes while its query holds the
    application's state, and no longer."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = dict(options)
        stay = given.pop(STAY, None)
        super().__init__(given, COLUMNS)
        self._stay = None if stay is None else json.loads(stay)

    async def check(self) -> None:
        """TopologyError once the state was moved away."""
        if self._stay is not None:
            holder = Holder.decode(self._stay["holder"])
            assert holder is not None, "stay_option writes a holder"
            name = self._stay["application_id"]
            await check_stay(self.options.bootstrap_servers, name, holder)

    def records(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The records of packets, each packet a batch."""
        for batch in batches:
            columns = (batch.column(name) for name in ("topic", "partition", "packet"))
            for topic, partition, packet in zip(*columns, strict=True):
                yield records_of_packet(topic.as_py(), partition.as_py(), packet.as_buffer())


def records_of_packet(topic: str, partition: int, packet: pa.Buffer) -> pa.RecordBatch:
    """The records of a packet, by RECORDS."""
    columns = unpack(packet)
    count = len(columns)
    names = pa.array(memoryview(bytes(4 * count)).cast("i"), pa.int32())
    arrow = columns.to_arrow()
    arrays = [
        pa.DictionaryArray.from_arrays(names, pa.array([topic], pa.string())),
        pa.nulls(count, pa.int32()) if partition == BY_KEY
        else pa.repeat(pa.scalar(partition, pa.int32()), count),
        arrow.column("key"),
        arrow.column("value"),
        arrow.column("timestamp").cast(MILLISECONDS),
        arrow.column("headers").cast(HEADERS),
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(arrays, schema=RECORDS)


class PacketWriter(StreamWriter):
    """Writes the micro-batches of a topology."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.sink = PacketSink(options)


class TopologySink(DataSource):
    """The sink, to register with a session."""

    @classmethod
    def name(cls) -> str:
        """The name that a query gives to `format`."""
        return SINK

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """The writer."""
        return PacketWriter(self.options)
