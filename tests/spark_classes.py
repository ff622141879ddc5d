"""`python tests/spark_classes.py FILE`: an archive of the classes that Spark loads in tests.

The JVM reads and verifies thousands of classes when it starts; from the archive it takes them as
they are, which is half of a start. A Java that cannot make one leaves an empty file.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def work(spark: SparkSession, folder: str) -> None:
    """What tests let Spark do: batches, files, a stream, a source and functions in Python."""
    rows = spark.range(100).selectExpr("id % 3 AS k", "cast(id AS string) AS v")
    rows.write.parquet(f"{folder}/rows")
    read = spark.read.parquet(f"{folder}/rows")
    read.groupBy("k").count().orderBy("k").collect()
    read.mapInArrow(lambda batches: batches, read.schema).toArrow()
    stream = spark.readStream.schema(read.schema).parquet(f"{folder}/rows")
    stream = stream.mapInArrow(lambda batches: batches, read.schema)
    query = stream.writeStream.option("checkpointLocation", f"{folder}/checkpoint")
    query.trigger(availableNow=True).format("parquet").start(f"{folder}/copy").awaitTermination()


def main(archive: Path) -> None:
    made = archive.with_suffix(f".{os.getpid()}")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{QUICK} -Xlog:disable -XX:ArchiveClassesAtExit={made}"
    from kafkalite.spark.jvm import end_jvm
    from kafkalite.spark.sessions import session

    spark = session("classes", master="local[2]")
    with tempfile.TemporaryDirectory() as folder:
        work(spark, folder)
    spark.stop()
    end_jvm()
    made.touch()
    made.rename(archive)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
