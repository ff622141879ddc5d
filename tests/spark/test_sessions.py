"""`kafkalite.spark.session()`: what it refuses, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import kafkalite.spark
from kafkalite.errors import ConfigError


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
