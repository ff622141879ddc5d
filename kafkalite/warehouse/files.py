"""Small files that are there entirely or not at all, whenever the machine fails.            [IO]

Owns   nothing. A writer's unfinished file has a name that begins with `_`.
Fails  with the disk's errors.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_json(path: Path, value: Any) -> None:
    """Writes a file in one step; it is on the disk when this returns."""
    fresh = path.with_name(f"_{path.name}.{os.getpid()}")
    with fresh.open("w") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Brings a file's bytes, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def move(source: Path, target: Path) -> None:
    """Gives a file its name, or finds that it has it already. The caller syncs the folder."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        source.replace(target)
    except FileNotFoundError:
        if not target.exists():
            raise
