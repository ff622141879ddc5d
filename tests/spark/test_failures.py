"""Exceptions of Spark as errors of one line: ours as we raised them, else what Spark says first."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, PySparkRuntimeError

from kafkalite.errors import ConfigError, KafkaliteError, SerdeError, StorageError
from kafkalite.spark.engine import SparkEngine
from kafkalite.spark.failures import our_failures

TRACEBACK = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 1, in main
"""
JAVA = """An error occurred while calling o42.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: ExitCode 137
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:1)
"""


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (
            PySparkException(f"{TRACEBACK}kafkalite.errors.SerdeError: t-0 offset 3: not JSON\n"),
            SerdeError("t-0 offset 3: not JSON"),
        ),
        (
            PySparkException(
                "[X] It failed: kafkalite.errors.ConfigError: endOffsets\n SQLSTATE: 1"
            ),
            ConfigError("endOffsets"),
        ),
        (
            PySparkException(f"{TRACEBACK}OSError: [Errno 28] No space left on device\n"),
            StorageError("here: No space left on device"),
        ),
        (
            PySparkException(TRACEBACK),
            KafkaliteError(
                "Spark: [PYTHON_EXCEPTION] An exception was thrown from the Python worker:"
            ),
        ),
        (
            Py4JError(JAVA),
            KafkaliteError(
                "Spark: org.apache.spark.SparkException: Job aborted due to stage failure: "
                "ExitCode 137"
            ),
        ),
    ],
)
def test_an_exception_of_spark_becomes_an_error_of_one_line(
    raised: Exception, expected: KafkaliteError
) -> None:
    with pytest.raises(KafkaliteError) as found, our_failures("here"):
        raise raised
    assert (type(found.value), str(found.value)) == (type(expected), str(expected))


def test_a_spark_that_does_not_start_is_an_error_of_one_line() -> None:
    def start() -> object:
        raise PySparkRuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited\nmore")

    engine = SparkEngine(start, "here")  # type: ignore[arg-type]
    with pytest.raises(KafkaliteError, match=r"^Spark: \[JAVA_GATEWAY_EXITED\] Java .* exited$"):
        _ = engine.session
    assert not engine.is_started


def test_errors_of_this_process_pass() -> None:
    with pytest.raises(ConfigError, match="as it is"), our_failures("here"):
        raise ConfigError("as it is")
