"""Spark: a source, a sink and warehouse loads, through PySpark alone.                      [IO]

    import kafkalite.spark

    spark = kafkalite.spark.session("orders")
    spark.read.format("kafkalite").option("kafka.bootstrap.servers", "127.0.0.1:9092")

Spark looks `format("kafkalite")` up with whatever `python3` is on the PATH, unless PYSPARK_PYTHON
names another. This package names the interpreter that imports it, so that a program finds the
source in an environment that is not activated. Import it before the session is made.

Owns   the environment variable PYSPARK_PYTHON of this process, where it is not set.
Never  imports pyspark before a session is wanted.
"""

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafkalite.spark.sessions import session

__all__ = ["session"]

if sys.executable:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first used."""
    if name == "session":
        from kafkalite.spark.sessions import session

        return session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
