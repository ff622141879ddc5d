"""The next version of a folder, built beside it and put in its place in one step.          [IO]

    WAREHOUSE/orders/…                          the table, as readers of the folder see it
    WAREHOUSE/_kafkalite/orders/00000007.load   its next version, made of hard links; afterwards
                                                the version before it

A reader that lists the folder sees all files of one version or all of the next one, also if the
process is killed at any point. The system call `renameat2` exchanges the two folders. The older
version stays for a while, so that a list that a reader has begun does not lose its end.

Owns   the folder of versions. Only the process that holds the table's lock may call `build`.
Fails  with NoExchange where the file system cannot exchange folders, as NFS cannot.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kafkalite.errors import StorageError
from kafkalite.warehouse.files import sync
from kafkalite.warehouse.workspace import FOLDER

AT_FDCWD: Final = -100
RENAME_EXCHANGE: Final = 2
GRACE_SECONDS: Final = 10.0  # lists of files that readers have begun


class NoExchange(StorageError):
    """The file system has no exchange of folders."""


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of the folder `table`."""

    table: Path

    @property
    def folder(self) -> Path:
        """The directory of the versions that are not the table's."""
        real = Path(os.path.realpath(self.table))
        return real.parent / FOLDER / real.name

    def build(self, name: str, without: Collection[str] = ()) -> Path:
        """A version with links to all files of the table, but for the paths `without`. It takes the
        place of an attempt that broke off; it is not in the table's place yet.
        """
        fresh = self.folder / name
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.parent.mkdir(parents=True, exist_ok=True)
        _link_tree(self.table, fresh, frozenset(without))
        return fresh

    def switch(self, fresh: Path) -> None:
        """Puts a version into the table's place; the one before it gets the version's name."""
        for folder, _, _ in os.walk(fresh):
            sync(Path(folder))
        _exchange(fresh, Path(os.path.realpath(self.table)))
        os.utime(fresh)  # its age counts from now on
        sync(self.table.parent)
        sync(fresh.parent)

    def remove(self, before: float, kind: str = "") -> Iterator[Path]:
        """Removes versions that were replaced before this time, in epoch seconds."""
        found = sorted(self.folder.glob(f"*{kind}")) if self.folder.exists() else []
        for old in found:
            if old.stat().st_mtime < before:
                shutil.rmtree(old)
                yield old

    def now(self) -> float:
        """The time of the file system, which the ages of versions are compared with."""
        os.utime(self.folder)
        return self.folder.stat().st_mtime


def link(source: Path, target: Path) -> None:
    """Gives a file another name; its folder is made if there is none."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    os.link(source, target)


def _link_tree(source: Path, target: Path, without: frozenset[str], below: str = "") -> None:
    target.mkdir()
    shutil.copystat(source, target)
    with os.scandir(source) as entries:
        for entry in entries:
            path = f"{below}{entry.name}"
            if path in without:
                continue
            if entry.is_dir(follow_symlinks=False):
                _link_tree(Path(entry), target / entry.name, without, f"{path}/")
                continue
            with suppress(FileNotFoundError):  # a worker of a killed load has renamed it
                os.link(entry, target / entry.name, follow_symlinks=False)


def _exchange(one: Path, other: Path) -> None:
    """Exchanges two folders' names. NoExchange where the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        raise NoExchange("this system has no renameat2")
    names = os.fsencode(one), os.fsencode(other)
    if rename(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE):
        reason = os.strerror(ctypes.get_errno())
        raise NoExchange(f"the file system of {other} cannot exchange folders: {reason}")
