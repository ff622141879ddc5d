"""A query's checkpoint folder: whose it is, and how far its batches have come.             [IO]

    DIR/kafkalite.json    ours: the application, and the stay on Spark that the folder belongs to
    DIR/metadata          Spark's: the query's id
    DIR/offsets/7         Spark's: batch 7 is planned, up to these offsets
    DIR/commits/7         Spark's: batch 7 is done, and its state is written

Owns   kafkalite.json; the rest is only read.
Fails  with TopologyError for a folder of another application, with StorageError where files cannot
       be read or written.
Source Spark's OffsetSeqLog and CommitLog: a version line, then lines of JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem

from kafkalite.core.types import TopicPartition
from kafkalite.errors import StorageError, TopologyError

LOCAL: Final = "file:"
OURS: Final = "kafkalite.json"
OFFSETS: Final = "offsets"
NOTHING: Final = "-"  # of a source that had no batch


class Checkpoint:
    """The checkpoint of one query. `location` is a path or a URI that pyarrow knows."""

    def __init__(self, location: str) -> None:
        self.location = location
        if location.startswith(LOCAL):
            location = "/" + location.removeprefix(LOCAL).lstrip("/")
        if "://" in location:
            self._files, self._root = FileSystem.from_uri(location)
        else:
            self._files, self._root = LocalFileSystem(), location

    def stay(self, application_id: str) -> str | None:
        """The stay that the folder belongs to; None: to none yet."""
        data = self._read(OURS)
        if data is None:
            return None
        try:
            found = json.loads(data)
            owner, stay = str(found["application_id"]), str(found["stay"])
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(f"{self.location}/{OURS} cannot be read: {error}") from None
        if owner != application_id:
            raise TopologyError(
                f"{application_id}: {self.location} is the checkpoint of {owner}: give this "
                "application a folder of its own"
            )
        return stay

    def begin(self, application_id: str, stay: str) -> None:
        """Notes which stay the folder belongs to. The file is there as a whole or not at all."""
        data = json.dumps({"application_id": application_id, "stay": stay}).encode()
        with self._failures():
            self._files.create_dir(self._root, recursive=True)
            with self._files.open_output_stream(f"{self._root}/{OURS}.new") as file:
                file.write(data)
            self._files.move(f"{self._root}/{OURS}.new", f"{self._root}/{OURS}")

    @property
    def query(self) -> str | None:
        """The id of the query, as its sink notes it with each epoch; None: none has begun."""
        data = self._read("metadata")
        return None if data is None else str(json.loads(data)["id"])

    @property
    def has_state(self) -> bool:
        """Whether the query has operators with state."""
        with self._failures():
            info: Any = self._files.get_file_info(f"{self._root}/state")
        return bool(info.type is FileType.Directory)

    @property
    def planned(self) -> int | None:
        """The last batch that was planned; None: no batch was."""
        return self._last("offsets")

    @property
    def completed(self) -> int | None:
        """The last batch that is done; None: no batch is."""
        return self._last("commits")

    def offsets(self, batch: int) -> dict[TopicPartition, int]:
        """Where a planned batch ends, in every partition that the query reads."""
        lines = (self._read(f"offsets/{batch}") or b"").decode().splitlines()
        found: dict[TopicPartition, int] = {}
        try:
            for line in lines[2:]:
                if line == NOTHING:
                    continue
                for topic, partitions in json.loads(line)[OFFSETS].items():
                    for number, offset in partitions.items():
                        found[TopicPartition(topic, int(number))] = int(offset)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StorageError(f"{self.location}/offsets/{batch} cannot be read: {error}") from None
        return found

    def _last(self, folder: str) -> int | None:
        with self._failures():
            infos: list[Any] = self._files.get_file_info(
                FileSelector(f"{self._root}/{folder}", allow_not_found=True)
            )
        return max((int(i.base_name) for i in infos if i.base_name.isdigit()), default=None)

    def _read(self, name: str) -> bytes | None:
        with self._failures():
            path = f"{self._root}/{name}"
            if self._files.get_file_info(path).type is not FileType.File:
                return None
            with self._files.open_input_stream(path) as file:
                data: bytes = file.read()
                return data

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(f"checkpoint {self.location}: {error}") from error
