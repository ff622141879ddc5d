"""A local Spark session with the settings that our source and loads rely on.             [IO]

Owns   the session that it creates. It uses an existing session without changes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from kafkalite.spark.java import ensure_java

QUIET: Final = Path(__file__).with_name("log4j2.properties")
SETTINGS: Final = {
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={QUIET}",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # A table has a folder a day and small files: list them here, not in a job of tasks, and
    # read many of them in one task.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    "spark.sql.files.openCostInBytes": "65536",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def local_session(app_name: str, cores: int | None = None) -> SparkSession:
    """A session on this machine; `cores` defaults to all of them."""
    ensure_java()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    threads = cores or os.cpu_count() or 1
    builder = SparkSession.builder.master(f"local[{threads}]").appName(app_name)
    builder = builder.config("spark.sql.shuffle.partitions", str(2 * threads))
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
