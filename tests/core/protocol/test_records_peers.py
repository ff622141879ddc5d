"""Batches that aiokafka and kafka-python write are read, and they read ours: all codecs."""

from __future__ import annotations

import aiokafka.record.default_records as aiokafka
import aiokafka.record.memory_records as aiokafka_memory
import kafka.record.default_records as kafka
import kafka.record.memory_records as kafka_memory
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.core.protocol.compression import Compression
from kafkalite.core.protocol.records import check_produced, decode, decode_all, encode, patch
from kafkalite.core.types import Columns

pytestmark = pytest.mark.slow

blobs = st.none() | st.binary(max_size=50)
rows = st.lists(
    st.tuples(
        blobs,
        blobs,
        st.integers(-(2**40), 2**50),
        st.lists(st.tuples(st.text(max_size=5), blobs), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=20,
)
PEERS = {
    "aiokafka": (aiokafka.DefaultRecordBatchBuilder, aiokafka_memory.MemoryRecords),
    "aiokafka-pure": (aiokafka._DefaultRecordBatchBuilderPy, aiokafka_memory._MemoryRecordsPy),
    "kafka-python": (kafka.DefaultRecordBatchBuilder, kafka_memory.MemoryRecords),
}
peers = pytest.mark.parametrize("peer", PEERS)
# kafka-python finds its snappy, lz4 and zstd in packages of their own; aiokafka covers those.
peers_and_codecs = pytest.mark.parametrize(
    ("peer", "codec"),
    [
        (peer, codec)
        for peer in PEERS
        for codec in Compression
        if peer != "kafka-python" or codec <= Compression.GZIP
    ],
)


def build(peer, records, codec, transactional=False):
    """A batch written by the peer, in offsets 0, 1, 2..."""
    builder = PEERS[peer][0](
        magic=2,
        compression_type=int(codec),
        is_transactional=transactional,
        producer_id=5,
        producer_epoch=1,
        base_sequence=0,
        batch_size=10_000_000,
    )
    for offset, (key, value, timestamp, headers) in enumerate(records):
        builder.append(offset, timestamp=timestamp, key=key, value=value, headers=list(headers))
    return bytes(builder.build())


def read(peer, data):
    """What the peer reads in a batch of ours: (offset, timestamp, key, value, headers) each."""
    memory = PEERS[peer][1](data)
    found = []
    while (batch := memory.next_batch()) is not None:
        assert batch.validate_crc()
        found += [
            (r.offset, r.timestamp, r.key, r.value, tuple(map(tuple, r.headers))) for r in batch
        ]
    return found


def columns_of(records):
    keys, values, timestamps, headers = (list(column) for column in zip(*records, strict=True))
    return Columns(keys, values, timestamps, headers=headers)


def assert_equal(got, records, base=0):
    assert got.keys == [record[0] for record in records]
    assert got.values == [record[1] for record in records]
    assert got.timestamps == [record[2] for record in records]
    assert got.offsets == range(base, base + len(records))
    assert got.headers in (None, [record[3] for record in records])
    assert (got.headers is None) == (not any(record[3] for record in records))


@peers_and_codecs
@settings(max_examples=30, deadline=None)
@given(records=rows, transactional=st.booleans())
def test_what_they_write_we_read(peer, codec, records, transactional):
    batch = build(peer, records, codec, transactional)
    header = check_produced(batch).header
    assert header.is_transactional is transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 1, 0)
    assert_equal(decode(batch), records)
    appended = bytearray(batch)
    patch(appended, 0, 1000, 3)
    assert_equal(decode(appended), records, 1000)


@peers_and_codecs
@settings(max_examples=30, deadline=None)
@given(records=rows, base=st.integers(0, 2**60))
def test_what_we_write_they_read(peer, codec, records, base):
    batch = encode(columns_of(records), base_offset=base, compression=codec)
    assert read(peer, batch) == [
        (base + i, timestamp, key, value, headers)
        for i, (key, value, timestamp, headers) in enumerate(records)
    ]


@peers
@settings(deadline=None)
@given(records=rows)
def test_uncompressed_batches_are_the_same_bytes(peer, records):
    ours = encode(columns_of(records), producer_id=5, producer_epoch=1, base_sequence=0)
    theirs = bytearray(build(peer, records, Compression.NONE))
    patch(theirs, 0, 0, -1)  # the leader epoch is the broker's to set; peers differ in it
    assert ours == theirs


@peers_and_codecs
def test_large_batches(peer, codec):
    """More than one block of every codec."""
    records = [
        (b"key-%d" % i, bytes([i % 251]) * (i % 400), 1_700_000_000_000 + i, ())
        for i in range(2_000)
    ]
    theirs = build(peer, records, codec)
    ours = encode(columns_of(records), compression=codec)
    assert_equal(decode_all(theirs), records)
    assert check_produced(theirs).newest == check_produced(ours).newest
    assert [row[2] for row in read(peer, ours)] == [record[0] for record in records]
