"""Modules are frozen and tracebacks hidden in Spark's own processes, and nowhere else."""

from __future__ import annotations

import subprocess
import sys

import pytest

FREEZE = """
import gc, sys
from importlib.machinery import ModuleSpec
from kafkalite.spark.processes import freeze_modules
sys.modules["__main__"].__spec__ = ModuleSpec(sys.argv[1], None)
freeze_modules()
first = gc.get_freeze_count()
kept = [[] for _ in range(1_000)]
freeze_modules()
again = gc.get_freeze_count() - first
import colorsys
freeze_modules()
print(first > 0, again == 0, gc.get_freeze_count() - first >= 1_000)
"""


@pytest.mark.parametrize(
    ("main", "frozen"), [("pyspark.daemon", "True True True\n"), ("app", "False True False\n")]
)
def test_modules_are_frozen_once_in_processes_of_the_daemon(main: str, frozen: str) -> None:
    command = [sys.executable, "-c", FREEZE, main]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == frozen


HIDE = """
import os, sys
from importlib.machinery import ModuleSpec
from kafkalite.errors import ConfigError
from kafkalite.spark.processes import errors_in_one_line
sys.modules["__main__"].__spec__ = ModuleSpec(sys.argv[1], None)
for error in (ValueError(), ConfigError("x")):
    try:
        with errors_in_one_line():
            raise error
    except Exception as found:
        print(found is error, "SPARK_HIDE_TRACEBACK" in os.environ)
"""


@pytest.mark.parametrize(("main", "hidden"), [("pyspark.daemon", "True"), ("app", "False")])
def test_tracebacks_of_our_errors_are_hidden_in_processes_of_spark(main: str, hidden: str) -> None:
    command = [sys.executable, "-c", HIDE, main]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"True False\nTrue {hidden}\n"
