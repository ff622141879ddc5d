"""The end of the JVM that Spark runs in.                                                     [IO]

The JVM reads its stdin, a pipe from this process, and ends when the pipe is closed. So it ends
with this process, also after kill -9.

Owns   the JVM that pyspark started for this process. Under spark-submit there is none.
"""

from __future__ import annotations

import subprocess
from typing import Final

WAIT_S: Final = 10.0


def end_jvm() -> None:
    """Ends the JVM, with all jobs in it. Afterwards this process has no more use of Spark."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return
    process.stdin.close()
    try:
        process.wait(WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
