"""Rows in RocksDB, by `rocksdict`.                                                       [IO]

    b"r" + key    a row
    b"m" + name   an entry of the metadata

A call of few rows is one atomic WriteBatch in RocksDB's write-ahead log. A call of many rows
writes a sorted table file and takes it in, then writes the metadata: six times as fast as single
puts, and metadata are still never newer than rows. Nothing is synced to the disk: a process that
is killed loses nothing, a machine that loses its power goes back to an earlier checkpoint.

Owns   one RocksDB directory. Memory: 2 buffers of `BUFFER_BYTES`, a cache of `CACHE_BYTES` that
       the stores of a state directory share.
Fails  with TopologyError where rocksdict is not installed; with StateDamaged where RocksDB cannot
       read or write; a file named DAMAGED then makes the next `open` start afresh.
Source RocksDB's wiki: WriteBatch, "Creating and Ingesting SST files".
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

from kafkalite.errors import TopologyError
from kafkalite.streams.local.state.backend import NO_METADATA, Range, StateDamaged, after
from kafkalite.streams.local.state.row_table import Rows, RowTable

ROW: Final = b"r"
ROW_END: Final = b"s"
META: Final = b"m"
BUFFER_BYTES: Final = 8 << 20
CACHE_BYTES: Final = 32 << 20
BLOOM_BITS: Final = 10  # per key: one absent key in a hundred is looked for in vain
BULK_ROWS: Final = 20_000  # from here on a table file is faster than a batch
DAMAGED: Final = "DAMAGED"
SIZES: Final = ("rocksdb.estimate-live-data-size", "rocksdb.cur-size-all-mem-tables")
BULK_FILE: Final = "bulk.sst"
STEP_ROWS: Final = 5_000  # of a load: some five milliseconds of work

T = TypeVar("T")


def load_rocksdict() -> ModuleType:
    """The library. TopologyError with the command that installs it where it is missing."""
    try:
        import rocksdict
    except ImportError as error:
        raise TopologyError(
            "state_dir= keeps state in RocksDB, and the package rocksdict is not installed: "
            "pip install 'kafkalite[state]'"
        ) from error
    return rocksdict


def new_cache() -> Any:
    """A cache of blocks, for several stores."""
    return load_rocksdict().Cache(CACHE_BYTES)


class RocksBackend:
    """A backend in the directory `path`, which is made where it does not exist. Without `cache` it
    has one of its own."""

    is_durable = True

    def __init__(self, path: Path, cache: Any = None) -> None:
        self._path = path
        self._library = load_rocksdict()
        self._cache = new_cache() if cache is None else cache
        self._options = self._make_options()
        self._db: Any = self._safely(self._open)

    def _open(self) -> Any:
        self._path.mkdir(parents=True, exist_ok=True)
        return self._library.Rdict(str(self._path), self._options)

    def __str__(self) -> str:
        return str(self._path)

    @classmethod
    def is_damaged(cls, path: Path) -> bool:
        """Whether an earlier process found that it could not read the directory."""
        return (path / DAMAGED).exists()

    def _make_options(self) -> Any:
        library = self._library
        table = library.BlockBasedOptions()
        table.set_bloom_filter(BLOOM_BITS, False)
        table.set_block_cache(self._cache)
        options = library.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_block_based_table_factory(table)
        options.set_write_buffer_size(BUFFER_BYTES)
        options.set_max_write_buffer_number(2)
        options.set_compression_type(library.DBCompressionType.lz4())
        options.set_keep_log_file_num(1)
        return options

    def _safely(self, call: Callable[[], T]) -> T:
        """What `call` gives; the directory is marked where RocksDB fails."""
        try:
            return call()
        except Exception as error:  # rocksdict knows no other type
            self._path.mkdir(parents=True, exist_ok=True)
            (self._path / DAMAGED).touch()
            raise StateDamaged(
                f"{self._path}: {error}; the next start rebuilds this state from its changelog"
            ) from error

    # Rows

    @property
    def is_empty(self) -> bool:
        """Whether there is no row."""
        return next(self.range(), None) is None

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, None where there is none."""
        found: list[bytes | None] = self._safely(lambda: self._db.get([ROW + key for key in keys]))
        return found

    def put_many(
        self,
        rows: Mapping[bytes, bytes | None],
        metadata: Mapping[str, bytes] = NO_METADATA,
        cleared: Sequence[Range] = (),
    ) -> None:
        """Deletes the rows in `cleared`, then puts `rows`; a value of None deletes the row."""
        if len(rows) < BULK_ROWS:
            self._safely(lambda: self._put(rows, metadata, cleared))
            return
        if not all(rows.values()):
            gone = {key: None for key, value in rows.items() if value is None}
            rows = {key: value for key, value in rows.items() if value is not None}
            self._safely(lambda: self._put(gone, NO_METADATA, cleared))
        elif cleared:
            self._safely(lambda: self._put({}, NO_METADATA, cleared))
        if rows:
            self._safely(lambda: self._take_in(rows))
        self._safely(lambda: self._put({}, metadata, ()))

    def _put(
        self,
        rows: Mapping[bytes, bytes | None],
        metadata: Mapping[str, bytes],
        cleared: Sequence[Range],
    ) -> None:
        batch = self._library.WriteBatch(raw_mode=True)
        for start, end in cleared:
            low, high = _bounds(start, end)
            if low < high:  # RocksDB refuses others
                batch.delete_range(low, high)
        put, delete = batch.put, batch.delete
        for key in sorted(rows):  # in order a put costs a third
            value = rows[key]
            if value is None:
                delete(ROW + key)
            else:
                put(ROW + key, value)
        for name, entry in metadata.items():
            put(META + name.encode(), entry)
        if not batch.is_empty():
            self._db.write(batch)

    def _take_in(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Writes the rows, which all have values, as a table file of their own."""
        writer = self._new_file()
        for key in sorted(rows):
            writer[ROW + key] = rows[key]
        writer.finish()
        self._ingest()

    def _new_file(self) -> Any:
        """Takes rows and deletions whose keys ascend."""
        writer = self._library.SstFileWriter(self._options)
        writer.open(str(self._path / BULK_FILE))
        return writer

    def _ingest(self) -> None:
        how = self._library.IngestExternalFileOptions()
        how.set_move_files(True)
        self._db.ingest_external_file([str(self._path / BULK_FILE)], how)

    def loading(self) -> RowTable:
        """A table beside the rows that are here."""
        return RowTable(keeps_deletions=True)

    def load(self, rows: RowTable, metadata: Mapping[str, bytes]) -> Iterator[None]:
        """Writes a table file, some rows at each step, and takes it in."""
        if len(rows) < BULK_ROWS:
            few: dict[bytes, bytes | None] = {}
            for some in rows.in_order(b"", STEP_ROWS):
                few.update(zip(*some, strict=True))
            self._safely(lambda: self._put(few, metadata, ()))
            return
        writer = self._safely(self._new_file)
        for some in rows.in_order(ROW, STEP_ROWS):
            self._safely(lambda: _write(writer, some))  # noqa: B023
            yield
        self._safely(writer.finish)
        yield
        self._safely(self._ingest)
        yield
        self._safely(lambda: self._put({}, metadata, ()))

    def range(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """The rows with start <= key < end, ascending."""
        low, high = _bounds(start, end)
        rows = self._safely(lambda: self._db.items(from_key=low))
        while (row := self._safely(lambda: next(rows, None))) is not None and row[0] < high:
            yield row[0][1:], row[1]

    def delete_range(self, start: bytes = b"", end: bytes | None = None) -> None:
        """Deletes the rows with start <= key < end."""
        self._safely(lambda: self._put({}, NO_METADATA, [(start, end)]))

    def prefixes(self, length: int) -> list[bytes]:
        """The different first `length` bytes of the keys, ascending: one seek for each."""
        return self._safely(lambda: list(self._prefixes(length)))

    def _prefixes(self, length: int) -> Iterator[bytes]:
        rows = self._db.iter()
        rows.seek(ROW)
        while rows.valid() and (key := rows.key()) < ROW_END:
            prefix = key[1 : 1 + length]
            yield prefix
            if (following := after(prefix)) is None:
                return
            rows.seek(ROW + following)

    # The rest

    def metadata(self, name: str) -> bytes | None:
        """An entry of the metadata."""
        found: bytes | None = self._safely(lambda: self._db.get(META + name.encode()))
        return found

    def clear(self) -> None:
        """Makes the directory anew, which takes no longer with many rows."""
        self.close()
        shutil.rmtree(self._path)
        self._db = self._safely(self._open)

    def approximate_bytes(self) -> int:
        """The live data in table files and the write buffers."""
        return self._safely(lambda: sum(self._db.property_int_value(name) or 0 for name in SIZES))

    @property
    def cached_bytes(self) -> int:
        """The bytes in the cache, of all stores that share it."""
        found: int = self._cache.get_usage()
        return found

    def close(self) -> None:
        """Lets go of the directory. RocksDB keeps what was put in its write-ahead log."""
        if self._db is not None:
            self._db.close()
            self._db = None


def _write(writer: Any, rows: Rows) -> None:
    for key, row in zip(*rows, strict=True):
        if row is None:
            del writer[key]
        else:
            writer[key] = row


def _bounds(start: bytes, end: bytes | None) -> tuple[bytes, bytes]:
    return ROW + start, ROW_END if end is None else ROW + end
