"""Rows of a task, kept in a file until the driver commits their epoch.                     [IO]

    <staging>/<name>/<epoch>/<attempt>.arrows    an Arrow stream of records, by rows.RECORDS

A file belongs to one attempt of one task, so an attempt that was killed, or ran twice, disturbs no
other: the driver sends the files of the attempts that Spark accepted, and removes the folder of the
epoch and of all before it.

Owns   the files below <staging>/<name>.
Fails  with StorageError, naming the folder, where files cannot be written or read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem

from kafkalite.errors import StorageError
from kafkalite.spark.sink.messages import Staged

LOCAL: Final = "file:"


class Staging:
    """The staged rows of one query. `location` is a path or a URI that pyarrow knows."""

    def __init__(self, location: str, name: str) -> None:
        self.location = location
        if location.startswith(LOCAL):  # Spark writes it with one slash
            location = "/" + location.removeprefix(LOCAL).lstrip("/")
        if "://" in location:
            self._files, root = FileSystem.from_uri(location)
        else:
            self._files, root = LocalFileSystem(), location
        self._root = f"{root}/{name}"

    def write(self, epoch: int, attempt: str, batches: Iterator[pa.RecordBatch]) -> Staged:
        """Writes the records of a task; no two attempts have one name."""
        folder, rows = self._folder(epoch), 0
        path = f"{folder}/{attempt}.arrows"
        with self._failures():
            first = next(batches, None)
            if first is None:
                return Staged("", 0)
            self._files.create_dir(folder, recursive=True)
            with (
                self._files.open_output_stream(path) as file,
                pa.ipc.new_stream(file, first.schema) as out,
            ):
                out.write_batch(first)
                rows += first.num_rows
                for batch in batches:
                    out.write_batch(batch)
                    rows += batch.num_rows
        return Staged(path, rows)

    def read(self, staged: Staged) -> Iterator[pa.RecordBatch]:
        """The records of a task."""
        with self._failures(), self._open(staged.path) as file, pa.ipc.open_stream(file) as stream:
            yield from stream

    def _open(self, path: str) -> pa.NativeFile:
        if isinstance(self._files, LocalFileSystem):
            return pa.memory_map(path)
        return self._files.open_input_stream(path)

    def remove_up_to(self, epoch: int) -> None:
        """Removes what was staged for an epoch and for those before it."""
        with self._failures():
            there = self._files.get_file_info(FileSelector(self._root, allow_not_found=True))
            for info in there:
                number = info.base_name
                if info.type is FileType.Directory and number.isdigit() and int(number) <= epoch:
                    self._files.delete_dir(info.path)

    def _folder(self, epoch: int) -> str:
        return f"{self._root}/{epoch}"

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(f"stagingLocation {self.location}: {error}") from error
