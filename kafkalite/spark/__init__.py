"""Spark: a source and warehouse loads, through PySpark alone.                             [IO]

Spark looks `format("kafkalite")` up with whatever `python3` is on the PATH, unless PYSPARK_PYTHON
names another. This package names the interpreter that imports it, so that a program finds the
source in an environment that is not activated. Import it before the session is made.

Owns   the environment variable PYSPARK_PYTHON of this process, where it is not set.
"""

import os
import sys

if sys.executable:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
