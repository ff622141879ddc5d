"""What loads of a table leave behind for each other: the lock, the plan, the staged files.   [IO]

    TABLE/_kafkalite/lock                              held by the loading process, which it names
    TABLE/_kafkalite/plan.json                         what the load under way is about
    TABLE/_kafkalite/merge.json                        see `kafkalite.warehouse.updating`
    TABLE/_kafkalite/staging/orders-2-0-500.json       a range is staged: its files and counts
    TABLE/_kafkalite/staging/orders-2-0-500.….tmp      such a file

The plan of a load that broke off is carried out by the next load, which writes only the ranges
that are not staged yet. A worker whose load was killed may go on for a while: it writes files with
names of its own and touches nothing else.

Owns   these files. Readers of tables ignore the folder, since its name begins with `_`.
Fails  with TableHeld if another process writes the table; with StorageError if a file cannot be
       read.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kafkalite.columnar.ranges import OffsetRange
from kafkalite.errors import StorageError
from kafkalite.warehouse.files import write_json
from kafkalite.warehouse.partitioning import file_name
from kafkalite.warehouse.target import StagedFile

FOLDER = "_kafkalite"


class TableHeld(StorageError):
    """Another process is writing the table."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A range that is staged: its files, and those of its dead letters."""

    wanted: OffsetRange
    files: tuple[StagedFile, ...]
    dead: tuple[StagedFile, ...] = ()
    skipped: int = 0

    @property
    def records(self) -> int:
        """The rows in its files."""
        return sum(file.records for file in self.files)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a load is about: its ranges, and how values are read and laid out, as JSON objects."""

    ranges: tuple[OffsetRange, ...]
    reading: dict[str, Any]
    layout: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Workspace:
    """The workspace of the table in the folder `table`."""

    table: Path

    @property
    def folder(self) -> Path:
        """The directory of all that a load keeps."""
        return self.table / FOLDER

    @property
    def staging(self) -> Path:
        """Where workers write."""
        return self.folder / "staging"

    @contextmanager
    def locked(self, work: str = "load") -> Iterator[None]:
        """Keeps other loads and compactions away from the table. TableHeld names the process that
        holds it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TableHeld(f"table {self.table} is held by {_holder(descriptor)}") from None
            name = f"a {work}: process {os.getpid()} on {socket.gethostname()}".encode()
            os.pwrite(descriptor, name, 0)
            os.ftruncate(descriptor, len(name))
            yield
        finally:
            os.close(descriptor)

    def plan(self) -> Plan | None:
        """The plan of a load that broke off."""
        found = noted(self.folder / "plan.json")
        if found is None:
            return None
        ranges = tuple(OffsetRange(**wanted) for wanted in found["ranges"])
        return Plan(ranges, found["reading"], found["layout"])

    def begin(self, plan: Plan) -> None:
        """Notes the plan, with an empty staging folder."""
        shutil.rmtree(self.staging, ignore_errors=True)
        self.staging.mkdir(parents=True)
        write_json(self.folder / "plan.json", asdict(plan))

    def staged(self, wanted: OffsetRange) -> Staged | None:
        """What is staged of a range; None while it is not complete."""
        return read_staged(self.staging, wanted)

    def noted(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """The ranges that are staged, by the names of the workers' notes alone."""
        try:
            names = {entry.name for entry in os.scandir(self.staging)}
        except FileNotFoundError:
            return []
        return [r for r in ranges if _result(self.staging, r).name in names]

    def clear(self) -> None:
        """Forgets the plan and what was staged for it."""
        (self.folder / "plan.json").unlink(missing_ok=True)
        shutil.rmtree(self.staging, ignore_errors=True)


def _holder(lock: int) -> str:
    """Who holds the lock, and since when: its file was written at that time."""
    name = os.pread(lock, 1_000, 0).decode(errors="replace").strip()
    since = datetime.fromtimestamp(os.fstat(lock).st_mtime, UTC)
    return f"{name or 'another process'}, since {since:%Y-%m-%d %H:%M:%S} UTC"


def _result(staging: Path, wanted: OffsetRange) -> Path:
    return staging / file_name(wanted).replace(".parquet", ".json")


def note_staged(staging: Path, staged: Staged) -> None:
    """A worker says that a range is staged; its files are on the disk."""
    write_json(_result(staging, staged.wanted), asdict(staged))


def read_staged(staging: Path, wanted: OffsetRange) -> Staged | None:
    """What a worker said of a range."""
    found = noted(_result(staging, wanted))
    if found is None:
        return None
    files, dead = (tuple(StagedFile(**f) for f in found[kind]) for kind in ("files", "dead"))
    return Staged(wanted, files, dead, found["skipped"])


def noted(path: Path) -> Any:
    """The content of a JSON file; None where there is none."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StorageError(f"{path}: not readable: {error}") from error
