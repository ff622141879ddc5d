"""A home of Spark whose Python processes start quickly.                                    [IO]

Spark puts `python/lib/pyspark.zip` of its home first on the path of its Python processes. A zip has
no compiled modules, so each process compiles PySpark anew, which takes half a second of CPU. Every
streaming query starts such a process, and the first query of a session about six. This home links
to all that the installed PySpark has, but for the zip: processes import the package itself.

Owns   the folder of links, in the user's cache.
Never  gives a home to workers that run another Python, which may have no PySpark but the zip.
Fails  never: without a home of ours Spark takes its own, and is only slower.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from kafkalite.spark.java import cache_folder

HOME: Final = "SPARK_HOME"
LEFT_OUT: Final = frozenset({"python", "__pycache__"})


@contextmanager
def quick_home() -> Iterator[None]:
    """A JVM that starts within the block has the home, unless the environment names another."""
    home = None if HOME in os.environ else _home()
    if home is None:
        yield
        return
    os.environ[HOME] = str(home)
    try:
        yield
    finally:
        del os.environ[HOME]


def _home() -> Path | None:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None or os.environ.get("PYSPARK_PYTHON") != sys.executable:
        return None
    installed = Path(spec.origin).parent
    if not (installed / "jars").is_dir():  # a client of Spark Connect, without a JVM
        return None
    digest = hashlib.sha256(str(installed).encode()).hexdigest()
    try:
        return linked(installed, cache_folder(f"spark-{digest[:16]}"))
    except OSError:  # a cache that cannot be written
        return None


def linked(installed: Path, home: Path) -> Path:
    """Makes `home` a folder of links to the folders of an installed PySpark."""
    home.mkdir(parents=True, exist_ok=True)
    for folder in installed.iterdir():
        link = home / folder.name
        if folder.is_dir() and folder.name not in LEFT_OUT and not link.exists():
            fresh = home / f".{folder.name}.{os.getpid()}"
            fresh.symlink_to(folder)
            fresh.replace(link)  # two processes may do this at once
    return home
