"""The end of the JVM, with programs in its place: one that reads its stdin, one that does not."""

from __future__ import annotations

import signal
import subprocess
from types import SimpleNamespace

import pytest
from pyspark import SparkContext

from kafkalite.spark import jvm


@pytest.mark.parametrize(("program", "code"), [("cat", 0), ("sleep 100", -signal.SIGKILL)])
def test_the_jvm_ends_when_its_stdin_is_closed_or_is_killed(
    program: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jvm, "WAIT_S", 5.0 if program == "cat" else 0.1)
    process = subprocess.Popen(program.split(), stdin=subprocess.PIPE)
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))
    jvm.end_jvm()
    assert process.returncode == code


def test_a_process_that_started_no_jvm_ends_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for gateway in (None, SimpleNamespace()):
        monkeypatch.setattr(SparkContext, "_gateway", gateway)
        jvm.end_jvm()
