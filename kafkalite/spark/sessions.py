"""Spark sessions with the settings that our source, sink and loads rely on.                [IO]

Owns   nothing: the session belongs to the process, and Spark gives the same one again.
Fails  with ConfigError where no Java of version 17 or newer is found, or for a master with a
       remote.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from kafkalite.errors import ConfigError
from kafkalite.spark.home import quick_home
from kafkalite.spark.java import ensure_java
from kafkalite.spark.source import KafkaliteSource

QUIET: Final = Path(__file__).with_name("log4j2.properties")
# Settings of SQL. A session that runs already, and one of Spark Connect, takes these alone.
OF_SQL: Final = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # A table has a folder a day and small files: list them here, not in a job of tasks, and
    # read many of them in one task.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    "spark.sql.files.openCostInBytes": "65536",
}
OF_THE_JVM: Final = {
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={QUIET}",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A busy machine starts a Python process in more than the 15 s that Spark waits for it.
    "spark.python.authenticate.socketTimeout": "60s",
}
LOCAL: Final = re.compile(r"local\[(\d+|\*)\]")
UNDER_SUBMIT: Final = "PYSPARK_GATEWAY_PORT"  # spark-submit has started the JVM, with its master


def session(
    app_name: str = "kafkalite",
    *,
    master: str | None = None,
    remote: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """The Spark session of this process, with kafkalite's settings; `settings` go before those.

    Without a `master` it is the one that `spark-submit` was given, or else all cores of this
    machine. `remote` is the address of a Spark Connect server, as `sc://host:15002`.
    """
    if remote is not None:
        if master is not None:
            raise ConfigError(f"remote {remote!r} and master {master!r}: give one of them")
        wanted = OF_SQL | dict(settings or {})
        return _with(SparkSession.builder.appName(app_name).remote(remote), wanted).getOrCreate()
    if master is None and UNDER_SUBMIT not in os.environ:
        master = "local[*]"
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    wanted = OF_SQL | OF_THE_JVM | _of_local(master) | dict(settings or {})
    if UNDER_SUBMIT not in os.environ:
        ensure_java()
    with quick_home() if _is_local(master) else nullcontext():
        running = _with(builder, wanted).getOrCreate()
    # The JVM of spark-submit is older than our PYSPARK_PYTHON and looks sources up with a Python of
    # its own; a registered source goes by this one.
    running.dataSource.register(KafkaliteSource)
    return running


def _is_local(master: str | None) -> bool:
    """Whether all of Spark's Python processes are children of this one, with its packages."""
    return master is not None and (master == "local" or master.startswith("local["))


def _of_local(master: str | None) -> dict[str, str]:
    """The settings for a Spark that runs in this process alone."""
    found = LOCAL.fullmatch(master or "")
    if found is None:
        return {}
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    threads = os.cpu_count() or 1 if found[1] == "*" else int(found[1])
    return {"spark.sql.shuffle.partitions": str(2 * threads)}


def _with(builder: SparkSession.Builder, settings: Mapping[str, str]) -> SparkSession.Builder:
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder
