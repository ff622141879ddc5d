"""Small text files of a data directory: offsets per partition, and the directory's owner.  [D]

    recovery-point-offset-checkpoint     below it everything is on the disk
    log-start-offset-checkpoint          below it everything is deleted
    replication-offset-checkpoint        the high watermark
    cleaner-offset-checkpoint            below it everything is compacted

        0                     version
        1                     entries
        orders 3 1200         topic, partition, offset

    meta.properties           version=1, cluster.id=..., node.id=..., directory.id=...
    .kafka_cleanshutdown      there until the first write after a clean shutdown
    <partition>/partition.metadata     version: 0, topic_id: ...

Owns   the formats. A file is replaced whole, so that a crash leaves the old one or the new.
Fails  with StorageError naming the file and the line; a damaged `OffsetCheckpoint` counts as empty.
Source apache/kafka OffsetCheckpointFile, MetaProperties, CleanShutdownFileHandler,
       PartitionMetadataFile.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final
from uuid import UUID

from kafkalite.core.config.settings import parse_properties
from kafkalite.core.log.port import Storage
from kafkalite.core.protocol.checksum import crc32c
from kafkalite.core.types import TopicPartition
from kafkalite.errors import StorageError

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS: Final = "log-start-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
CLEANED_OFFSETS: Final = "cleaner-offset-checkpoint"
GUARD_SUFFIX: Final = ".crc"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
META_PROPERTIES: Final = "meta.properties"
PARTITION_METADATA: Final = "partition.metadata"

Offsets = dict[TopicPartition, int]


def read_offsets(storage: Storage, name: str) -> Offsets:
    """The offsets of a checkpoint; none where it is not there."""
    return parse_offsets(storage.read_small(name) or b"", name)


def parse_offsets(data: bytes, name: str) -> Offsets:
    """The offsets in a checkpoint's text, which Kafka may leave empty. StorageError, by `name`."""
    if not data:
        return {}
    version, count, *rows = [*data.decode("utf-8", "replace").splitlines(), "", ""]
    offsets: Offsets = {}
    for number, row in enumerate(rows, start=3):
        if row:
            offsets.update([_parse_row(name, number, row)])
    if version.strip() != "0" or count.strip() != str(len(offsets)):
        raise StorageError(
            f"{name}: version '{version}', {len(offsets)} entries where '{count}' are announced"
        )
    return offsets


def _parse_row(name: str, number: int, row: str) -> tuple[TopicPartition, int]:
    try:
        topic, partition, offset = row.split()
        where, value = TopicPartition(topic, int(partition)), int(offset)
        if where.partition < 0 or value < 0:
            raise ValueError(row)
        return where, value
    except ValueError:
        raise StorageError(f"{name}: line {number} is no topic, partition, offset: {row}") from None


def offsets_text(offsets: Mapping[TopicPartition, int]) -> bytes:
    """A checkpoint's text."""
    rows = "".join(f"{tp.topic} {tp.partition} {offset}\n" for tp, offset in offsets.items())
    return f"0\n{len(offsets)}\n{rows}".encode()


def write_offsets(storage: Storage, name: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replaces a checkpoint."""
    storage.replace(name, offsets_text(offsets))


class OffsetCheckpoint:
    """One checkpoint: `offsets` are the wanted ones, `written` those in the file.

    Two threads may write it; the last one ensures that the file has the newest offsets. A damaged
    file counts as empty; `damage` describes the damage until the file is written again.

    `is_guarded`: a file beside it holds the CRC of its text, and of the one that is to replace it.
    Kafka's format has none, so a wrong digit would go unnoticed.
    """

    __slots__ = (
        "_crc",
        "_is_guarded",
        "_name",
        "_newest",
        "_storage",
        "damage",
        "offsets",
        "written",
    )

    def __init__(self, storage: Storage, name: str, *, is_guarded: bool = False) -> None:
        """Reads the file. OSError."""
        self._storage = storage
        self._name = name
        self._is_guarded = is_guarded
        self.damage: str | None = None
        self.offsets: Offsets = {}
        data = storage.read_small(name) or b""
        self._crc = crc32c(data)
        try:
            self._check_guard()
            self.offsets = parse_offsets(data, name)
        except StorageError as error:
            self.damage = str(error)
        self.written: Mapping[TopicPartition, int] = dict(self.offsets)
        self._newest = self.written

    def _check_guard(self) -> None:
        guard = self._storage.read_small(self._name + GUARD_SUFFIX) if self._is_guarded else None
        if guard is not None and b"%08x" % self._crc not in guard.split():
            raise StorageError(f"{self._name}: it does not have the CRC that it was written with")

    def writer(self) -> Callable[[], None] | None:
        """A function that writes the current offsets, also in another thread; None if the file has
        them. It raises StorageError."""
        if self.written == self.offsets and self.damage is None:
            return None
        self._newest = dict(self.offsets)
        return partial(self._write, self._newest)

    def _write(self, offsets: Mapping[TopicPartition, int]) -> None:
        while True:
            try:
                self._replace(offsets_text(offsets))
            except OSError as error:
                raise StorageError(f"{self._name}: {error}") from error
            self.written, self.damage = offsets, None
            if offsets is self._newest:
                return
            offsets = self._newest

    def _replace(self, data: bytes) -> None:
        crc = crc32c(data)
        if self._is_guarded:  # first: a crash leaves the old text or the new one
            guard = b"%08x %08x\n" % (self._crc, crc)
            self._storage.replace(self._name + GUARD_SUFFIX, guard)
        self._storage.replace(self._name, data)
        self._crc = crc


def read_meta_properties(storage: Storage) -> dict[str, str]:
    """The properties of the directory's owner; empty if it has none yet."""
    data = storage.read_small(META_PROPERTIES)
    return {} if data is None else parse_properties(data.decode("utf-8", "replace"))


def write_meta_properties(storage: Storage, properties: Mapping[str, str]) -> None:
    """Says whose directory this is; `version` is added. StorageError."""
    pairs = {"version": "1", **properties}
    rows = "".join(f"{name}={value}\n" for name, value in sorted(pairs.items()))
    try:
        storage.replace(META_PROPERTIES, f"#\n{rows}".encode())
    except OSError as error:
        raise StorageError(f"{META_PROPERTIES}: {error}") from error


def take_clean_shutdown(storage: Storage) -> bool:
    """Whether the last shutdown was clean; the marker goes, as whoever asks is about to write."""
    if storage.read_small(CLEAN_SHUTDOWN) is None:
        return False
    storage.delete(CLEAN_SHUTDOWN)
    storage.sync_directory("")
    return True


def mark_clean_shutdown(storage: Storage) -> None:
    """Says that all logs were closed and nothing needs recovery."""
    storage.replace(CLEAN_SHUTDOWN, b'{"version":0,"brokerEpoch":-1}')


def read_topic_id(storage: Storage, directory: str, expected: UUID | None = None) -> UUID | None:
    """The id of the topic that a partition's directory belongs to; `expected` is found fastest.

    None where it is not written, or torn: it is not synced before the partition's first flush.
    """
    path = f"{directory}/{PARTITION_METADATA}"
    data = storage.read_small(path)
    if data is None:
        return None
    if expected is not None and data == _metadata(expected):  # as good as always
        return expected
    return parse_topic_id(data, path)


def parse_topic_id(data: bytes, path: str) -> UUID | None:
    """The id in the text of a partition.metadata; None where it is torn. StorageError."""
    fields = parse_properties(data.decode("utf-8", "replace"))
    version = fields.get("version", "0")
    if version.isdecimal() and version != "0":
        raise StorageError(f"{path}: version {version}, expected 0")
    try:
        return UUID(bytes=base64.urlsafe_b64decode(fields["topic_id"] + "=="))
    except (KeyError, ValueError):
        return None


def write_topic_id(storage: Storage, directory: str, topic_id: UUID) -> None:
    """Writes the topic's id into a partition's new directory; the log's first flush syncs it."""
    file = storage.open(f"{directory}/{PARTITION_METADATA}")
    if file.size_bytes:
        file.truncate(0)
    file.append(_metadata(topic_id))
    file.close()


def _metadata(topic_id: UUID) -> bytes:
    text = base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=")
    return b"version: 0\ntopic_id: " + text + b"\n"
