"""The source in a real Spark: filters and errors; and the traps of Spark's Python data sources.

The traps, each with its test, here or in the file that is named:

 1  Spark asks for the first offset twice, and again after a restart before the first commit:
    test_readers.test_latest_is_where_the_log_ended_when_the_query_was_new
 2  a reader that takes filters makes queries fail unless a setting allows it:
    test_filters_need_the_option_and_the_setting; no columns are pruned: test_readers.
    test_some_fields_are_decoded_as_a_pinned_schema_and_bad_records_dropped
 3  after a commit that raised, Spark calls abort: test_an_abort_of_a_stream_undoes_nothing, and
    test_sink_epochs.test_a_driver_may_die_at_any_moment_of_a_commit
 4  a batch is reported when the next one begins: test_readers.test_offsets_are_committed_to_a_group
 5  batches have exactly the columns of the schema, and arguments exactly Spark's names:
    test_batches_have_the_columns_of_the_schema, test_arguments_have_the_names_that_spark_gives
 6  writers and readers are made twice for a batch, in other processes:
    test_what_spark_makes_often_connects_to_nothing
 7  the number of a batch is a property of the task: test_sink.
    test_every_row_is_there_once_though_driver_and_tasks_are_killed
 8  a failed batch comes again with the same offsets: test_readers.
    test_a_repeated_batch_has_the_same_records
 9  the simple stream reader ignores limits: test_the_stream_reader_is_not_the_simple_one
10  every application imports `pyspark_kafkalite`: test_readers.
    test_what_every_application_of_spark_imports_is_light
11  the wheel's Java lacks a module: test_java; another Python on the PATH: test_guide_spark
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import datasource
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import Columns
from kafkalite.errors import SerdeError
from kafkalite.spark.failures import our_failures
from kafkalite.spark.sink.writers import BatchWriter, StreamWriter
from kafkalite.spark.source import BatchReader, KafkaliteSource, PruningReader, StreamReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOBODY = {"kafka.bootstrap.servers": "127.0.0.1:1"}
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
JSON = {"value.format": "json", "inferSchema": "true"}

Read = Callable[..., "DataFrame"]


@pytest.fixture(scope="module")
def topic(bootstrap: str) -> str:
    """Ten JSON objects in each of two partitions; the moment of a record is its number."""
    name = "spark-source"

    async def go() -> None:
        async with Admin(bootstrap) as admin:
            if not await admin.create_missing_topics([NewTopic(name, 2)]):
                return  # made when the first part of these tests ran: the slow ones run apart
        async with Producer(bootstrap) as producer:
            for partition in range(2):
                numbers = range(10 * partition, 10 * partition + 10)
                texts = [b'{"id": %d}' % number for number in numbers]
                columns = Columns([b"k"] * 10, texts, list(numbers))
                await producer.send_columns(name, columns, partition)
            await producer.flush()

    asyncio.run(go())
    return name


@pytest.fixture
def read(spark: SparkSession, bootstrap: str, topic: str) -> Read:
    def go(**options: str) -> DataFrame:
        given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic} | options
        return spark.read.format("kafkalite").options(**given).load()

    return go


def ids(found: DataFrame) -> list[int]:
    return sorted(row.id for row in found.select("value.id").collect())


def shown_line(failing: Callable[[], object]) -> str:
    """The only line that Spark shows, but for its code."""
    with pytest.raises(PySparkException) as raised:
        failing()
    (line,) = [line for line in str(raised.value).splitlines() if "SQLSTATE" not in line]
    return line


# ---- filters -----------------------------------------------------------------------------------


def test_filters_save_reading_and_keep_every_row(read: Read) -> None:
    """Each query has a DataFrame of its own: Spark 4.3 keeps a filtered read for all of a frame."""
    for where, expected in (
        ("partition = 1 and offset >= 7", [17, 18, 19]),
        ("timestamp > timestamp'1970-01-01 00:00:00.015Z'", [16, 17, 18, 19]),
        ("timestamp > timestamp'2100-01-01'", []),
        ("value.id = 3 or offset = 9", [3, 9, 19]),
        ("value.id in (3, 12) and key = X'6B'", [3, 12]),
        ("topic like 'spark-%' and not value.id < 18", [18, 19]),
    ):
        assert ids(read(pushFilters="once", **JSON).where(where)) == expected, where
    found = read(pushFilters="once", **JSON)
    assert found.where("partition = 1 and offset >= 7").rdd.getNumPartitions() == 1  # of two
    assert read(pushFilters="once").where("offset < 5").count() == 10


def test_filters_need_the_option_and_the_setting(spark: SparkSession, read: Read) -> None:
    spark.conf.set(PUSHDOWN, "false")
    try:
        assert ids(read(**JSON).where("offset = 1")) == [1, 11]
        with pytest.raises(PySparkException, match=PUSHDOWN):
            read(pushFilters="once", **JSON).where("offset = 1").count()
    finally:
        spark.conf.set(PUSHDOWN, "true")


# ---- errors and lag ----------------------------------------------------------------------------


def test_a_wrong_option_is_named_in_one_line(read: Read, bootstrap: str) -> None:
    assert shown_line(lambda: read(endOffsets="7")) == (
        "[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: "
        "kafkalite.errors.ConfigError: endoffsets: '7': format('kafkalite') has no option of this "
        "name, perhaps endingOffsets"
    )
    gone = shown_line(lambda: read(subscribe="nowhere").count())
    assert gone.endswith(
        f": kafkalite.errors.TopologyError: topic 'nowhere' does not exist at {bootstrap}"
    )


def test_the_error_of_a_stream_names_the_record_and_shows_no_java(
    spark: SparkSession, bootstrap: str, topic: str
) -> None:
    words = spark.readStream.format("kafkalite").option("kafka.bootstrap.servers", bootstrap)
    words = words.options(assign=json.dumps({topic: [1]}), startingOffsets="earliest")
    fields = StructType().add("number", "integer").json()
    words = words.options(**{"value.format": "json", "value.schema": fields})
    query = words.load().writeStream.format("noop").trigger(availableNow=True).start()
    expected = pytest.raises(SerdeError, match=f"^{topic}-1 offset 0: .*no column")
    with expected as raised, our_failures("the stream"):
        query.awaitTermination()
    assert isinstance(raised.value.__cause__, PySparkException)
    shown = str(raised.value.__cause__)
    assert f"kafkalite.errors.SerdeError: {raised.value}\n" in shown
    assert "\tat " not in shown
    assert "Traceback" not in shown


# ---- traps without a session ---------------------------------------------------------------


def test_batches_have_the_columns_of_the_schema(bootstrap: str, topic: str) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "includeHeaders": "true"}
    for options in (JSON, {"value.format": "string", "key.format": "string"}, {}):
        source = KafkaliteSource(given | options)
        reader = source.reader(source.schema())
        assert isinstance(reader, BatchReader)
        for batch in (each for part in reader.partitions() for each in reader.read(part)):
            assert batch.schema.names == source.schema().names
            assert batch.schema.types == [
                field.type for field in to_arrow_schema(source.schema(), timezone="UTC")
            ]


@pytest.mark.parametrize(
    "ours", [KafkaliteSource, PruningReader, StreamReader, BatchWriter, StreamWriter]
)
def test_arguments_have_the_names_that_spark_gives(ours: type) -> None:
    for theirs in ours.__mro__:
        if theirs.__module__.startswith("pyspark."):
            for name, function in vars(theirs).items():
                if inspect.isfunction(function) and not name.startswith("_"):
                    expected = list(inspect.signature(function).parameters)
                    found = list(inspect.signature(getattr(ours, name)).parameters)
                    assert found == expected, f"{ours.__name__}.{name}"


def test_what_spark_makes_often_connects_to_nothing(tmp_path: Path) -> None:
    source = KafkaliteSource(NOBODY | {"subscribe": "a", "value.format": "avro"})
    source.streamReader(StructType()).stop()
    rows = StructType().add("value", "binary")
    options: dict[str, Any] = NOBODY | {"topic": "a", "checkpointLocation": str(tmp_path)}
    for guarantee in ("at-least-once", "exactly-once"):
        sink = KafkaliteSource(options | {"deliveryGuarantee": guarantee})
        sink.streamWriter(rows, overwrite=False)
    KafkaliteSource(options).writer(rows, overwrite=False)


def test_an_abort_of_a_stream_undoes_nothing(tmp_path: Path) -> None:
    """The epoch may be in the log: nobody is asked, nothing staged is removed."""
    options = NOBODY | {"topic": "a", "checkpointLocation": str(tmp_path)}
    options |= {"deliveryGuarantee": "exactly-once"}
    staged = tmp_path / "staged"
    staged.write_bytes(b"rows")
    StreamWriter(options, StructType().add("value", "binary")).abort([], batchId=0)
    assert [path.name for path in tmp_path.rglob("*")] == ["staged"]


def test_the_stream_reader_is_not_the_simple_one() -> None:
    assert issubclass(StreamReader, SupportsTriggerAvailableNow)
    assert not issubclass(StreamReader, datasource.SimpleDataSourceStreamReader)
    assert "simpleStreamReader" not in vars(KafkaliteSource)
