"""`kafkalite.spark.session()`: what it refuses, and what importing it costs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kafkalite.spark
from kafkalite.errors import ConfigError
from kafkalite.spark.home import linked, quick_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_session_has_a_master_or_a_remote() -> None:
    with pytest.raises(ConfigError, match=r"remote 'sc://h:1' and master 'local\[2\]': give one"):
        kafkalite.spark.session(remote="sc://h:1", master="local[2]")


def test_the_room_is_imported_without_pyspark() -> None:
    """`sessions` must not hide the function behind a module of its name."""
    listed = (
        "import kafkalite.spark, sys; print('pyspark' in sys.modules, end=' ');"
        "import kafkalite.spark.sessions; print(callable(kafkalite.spark.session))"
    )
    ran = subprocess.run([sys.executable, "-c", listed], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "True"]


def test_a_home_of_spark_has_all_but_its_zip(tmp_path: Path) -> None:
    for name in ("bin", "jars", "python/lib", "__pycache__"):
        (tmp_path / "pyspark" / name).mkdir(parents=True)
    (tmp_path / "pyspark" / "worker.py").touch()
    for _ in range(2):
        home = linked(tmp_path / "pyspark", tmp_path / "cache" / "home")
        assert {each.name: each.resolve() for each in home.iterdir()} == {
            name: tmp_path / "pyspark" / name for name in ("bin", "jars")
        }


def test_a_home_or_a_python_of_the_users_own_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    monkeypatch.delenv("SPARK_HOME", raising=False)
    with quick_home():
        assert "SPARK_HOME" not in os.environ
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    with quick_home():
        assert Path(os.environ["SPARK_HOME"]).parent == tmp_path / "kafkalite"
    assert "SPARK_HOME" not in os.environ
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    with quick_home():
        assert os.environ["SPARK_HOME"] == "/opt/spark"


@pytest.mark.slow
def test_python_processes_import_the_installed_pyspark(spark: SparkSession) -> None:
    import pyarrow as pa

    def where(batches: Iterator[Any]) -> Iterator[Any]:
        import pyspark

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"file": [pyspark.__file__]})

    import pyspark

    (found,) = spark.range(1).mapInArrow(where, "file string").collect()
    assert found.file == pyspark.__file__
