"""A worker process that runs until the block ends."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


@contextmanager
def serving(command: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Starts it; what it says goes to a file of the folder. It is killed in the end."""
    with (folder / "workers.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
