"""The contents of a log's files as documents: a dict for each batch, record, entry.          [IO]

Owns   the names of the fields. Reads through `log_files`, writes nothing.
Fails  with StorageError naming file and byte at the first damage, after the documents before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final, TypeVar

from kafkalite.cli.log_files import Directory, FileKind, LogFile, opened
from kafkalite.cli.records_out import json_headers
from kafkalite.cli.values import json_columns
from kafkalite.core.config.settings import parse_properties
from kafkalite.core.log import checkpoints, inspection
from kafkalite.core.log.epochs import parse_epochs
from kafkalite.core.log.inspection import Batch, Fault
from kafkalite.core.log.producer_state import ProducerState
from kafkalite.core.protocol.codec import decode_with_version, read_version
from kafkalite.core.protocol.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kafkalite.core.protocol.records import parse_end_transaction_marker
from kafkalite.core.protocol.transaction_records import TransactionLogKey, TransactionLogValue
from kafkalite.core.types import TopicPartition
from kafkalite.errors import CorruptBatchError, StorageError, WireError

Document = dict[str, Any]
E = TypeVar("E")

GROUP_KEY: Final = 2  # the version of a group's key in __consumer_offsets
OFFSETS_TOPIC: Final = "__consumer_offsets-"
TRANSACTIONS_TOPIC: Final = "__transaction_state-"


def documents(directory: Directory, file: LogFile, *, records: bool) -> Iterator[Document]:
    """The documents of a file. StorageError at the first damage."""
    if file.kind is FileKind.LOG:
        yield from _log(directory, file, records=records)
        return
    try:
        for document in READERS[file.kind](file):
            if isinstance(document, Fault):
                raise StorageError(f"byte {document.position}: {document.what}")
            yield document
    except StorageError as error:
        raise StorageError(f"{file.path}: {error}") from None


def _log(directory: Directory, file: LogFile, *, records: bool) -> Iterator[Document]:
    decoder = _decoder(directory.path.name)
    with opened(file.path) as readable:
        for found in inspection.batches(readable):
            if isinstance(found, Fault):
                raise StorageError(f"{file.path}: byte {found.position}: {found.what}")
            yield _batch(found)
            if records:
                yield from _records(file, found, decoder)


def _batch(batch: Batch) -> Document:
    header = batch.header
    return {
        "what": "batch",
        "position": batch.position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "bytes": header.size_bytes,
        "crc": f"{header.crc:#010x}",
        "leader_epoch": header.partition_leader_epoch,
        "compression": header.compression.name.lower(),
        "timestamp_type": header.timestamp_type.name,
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "delete_horizon": header.delete_horizon_ms,
    }


# ---- records -----------------------------------------------------------------------------------

Decoder = Callable[[bytes | None, bytes | None], Mapping[str, Any]]


def _records(file: LogFile, batch: Batch, decoder: Decoder | None) -> Iterator[Document]:
    try:
        columns = batch.records()
    except CorruptBatchError as error:
        raise StorageError(f"{file.path}: byte {batch.position}: {error}") from None
    headers = columns.headers or [()] * len(columns)
    for index, offset in enumerate(columns.offsets or ()):
        key, value = columns.keys[index], columns.values[index]
        document: Document = {
            "what": "record",
            "offset": offset,
            "timestamp": columns.timestamps[index],
        }
        if batch.header.is_control:
            document |= _marker(key, value)
        else:
            document |= _plain(key, value)
            document["headers"] = json_headers(headers[index])
            if decoder is not None:
                document["means"] = _meaning(decoder, key, value)
        yield document


def _plain(key: bytes | None, value: bytes | None) -> Document:
    plain, bent = json_columns([key, value])
    names = [f"{n}_base64" if i in bent else n for i, n in enumerate(("key", "value"))]
    return dict(zip(names, plain, strict=True))


def _marker(key: bytes | None, value: bytes | None) -> Document:
    marker = parse_end_transaction_marker(key, value)
    if marker is None:
        return {"marker": None}
    return {"marker": marker.control_type.name, "coordinator_epoch": marker.coordinator_epoch}


def _decoder(directory: str) -> Decoder | None:
    """The decoder for records of the brokers' internal topics; None for other topics."""
    if directory.startswith(OFFSETS_TOPIC):
        return _group_record
    return _transaction_record if directory.startswith(TRANSACTIONS_TOPIC) else None


def _meaning(decoder: Decoder, key: bytes | None, value: bytes | None) -> Mapping[str, Any] | str:
    try:
        return decoder(key, value)
    except WireError as error:
        return f"not understood: {error}"


def _group_record(key: bytes | None, value: bytes | None) -> Mapping[str, Any]:
    is_group = read_version(key or b"") == GROUP_KEY
    kinds = (
        (GroupMetadataKey, GroupMetadataValue) if is_group else (OffsetCommitKey, OffsetCommitValue)
    )
    return _both(key, value, *kinds)


def _transaction_record(key: bytes | None, value: bytes | None) -> Mapping[str, Any]:
    return _both(key, value, TransactionLogKey, TransactionLogValue)


def _both(key: bytes | None, value: bytes | None, key_type: Any, value_type: Any) -> Document:
    document: Document = asdict(decode_with_version(key_type, key or b""))
    if value is None:
        return {**document, "tombstone": True}
    return document | asdict(decode_with_version(value_type, value, accept_newer=True))


# ---- the other files -----------------------------------------------------------------------------


def _documents(
    found: Iterable[E | Fault], document_of: Callable[[E], Document]
) -> Iterator[Document | Fault]:
    return (each if isinstance(each, Fault) else document_of(each) for each in found)


def _index(file: LogFile) -> Iterator[Document | Fault]:
    return _documents(
        inspection.offset_entries(file.whole(), file.base_offset),
        lambda e: {"what": "index_entry", "offset": e.offset, "position": e.log_position},
    )


def _time_index(file: LogFile) -> Iterator[Document | Fault]:
    return _documents(
        inspection.time_entries(file.whole(), file.base_offset),
        lambda e: {"what": "time_index_entry", "timestamp": e.timestamp, "offset": e.offset},
    )


def _transaction_index(file: LogFile) -> Iterator[Document | Fault]:
    return _documents(
        inspection.aborted_entries(file.whole()),
        lambda e: {"what": "aborted_transaction", **e.transaction._asdict()},
    )


def _snapshot(file: LogFile) -> Iterator[Document | Fault]:
    state = ProducerState(TopicPartition(file.path.parent.name, 0))
    state.load_snapshot(file.whole(), "producer snapshot")
    for entry in state.entries.values():
        last = entry.batches[-1] if entry.batches else None
        yield {
            "what": "producer",
            "producer_id": entry.producer_id,
            "producer_epoch": entry.producer_epoch,
            "coordinator_epoch": entry.coordinator_epoch,
            "last_sequence": entry.last_sequence,
            "last_offset": last.last_offset if last else None,
            "last_timestamp": entry.last_timestamp,
            "transaction_first_offset": entry.transaction_first_offset,
        }


def _epochs(file: LogFile) -> Iterator[Document | Fault]:
    for entry in parse_epochs(file.whole(), file.path.name):
        yield {"what": "epoch", **entry._asdict()}


def _offsets(file: LogFile) -> Iterator[Document | Fault]:
    found = checkpoints.parse_offsets(file.whole(), file.path.name)
    for (topic, partition), offset in found.items():
        yield {"what": "offset", "topic": topic, "partition": partition, "offset": offset}


def _partition_metadata(file: LogFile) -> Iterator[Document | Fault]:
    topic_id = checkpoints.parse_topic_id(file.whole(), file.path.name)
    if topic_id is None:
        raise StorageError("the file holds no topic id")
    yield {"what": "partition_metadata", "topic_id": str(topic_id)}


def _meta_properties(file: LogFile) -> Iterator[Document | Fault]:
    for name, value in parse_properties(file.whole().decode("utf-8", "replace")).items():
        yield {"what": "property", "name": name, "value": value}


READERS: Final[Mapping[FileKind, Callable[[LogFile], Iterator[Document | Fault]]]] = {
    FileKind.INDEX: _index,
    FileKind.TIME_INDEX: _time_index,
    FileKind.TRANSACTION_INDEX: _transaction_index,
    FileKind.SNAPSHOT: _snapshot,
    FileKind.EPOCHS: _epochs,
    FileKind.OFFSETS: _offsets,
    FileKind.PARTITION_METADATA: _partition_metadata,
    FileKind.META_PROPERTIES: _meta_properties,
}
