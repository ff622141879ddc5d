"""What tests of record batches share: true ones, and such as lie."""

from __future__ import annotations

import struct

import pytest

from kafkalite.core.protocol import records
from kafkalite.core.protocol.checksum import crc32c
from kafkalite.core.protocol.compression import Compression
from kafkalite.core.protocol.records import BATCH_HEADER_BYTES, check_produced
from kafkalite.core.types import Columns
from kafkalite.errors import ApiError

HEADER = struct.Struct(">qiibIhiqqqhii")
FIELDS = {name: i for i, name in enumerate(records.BatchHeader._fields)}
codecs = pytest.mark.parametrize("codec", list(Compression))


def columns(count=3):
    rows = range(count)
    return Columns(
        [None if i % 3 == 1 else b"key-%d" % i for i in rows],
        [None if i % 5 == 4 else b"value-%d" % i for i in rows],
        [1_700_000_000_000 + i for i in rows],
    )


def keyed(count=3):
    rows = range(count)
    return Columns([b"k%d" % i for i in rows], [b"v"] * count, [5] * count)


def altered(batch, *, body=None, seal=True, **fields):
    """`batch` with header fields or records replaced, its length and CRC made true again."""
    batch = bytearray(batch) if body is None else bytearray(batch[:BATCH_HEADER_BYTES] + body)
    header = list(HEADER.unpack_from(batch))
    header[FIELDS["batch_length"]] = len(batch) - 12
    for name, value in fields.items():
        header[FIELDS[name]] = value
    HEADER.pack_into(batch, 0, *header)
    if seal:
        struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return bytes(batch)


def refused(batch, **options):
    with pytest.raises(ApiError) as caught:
        check_produced(batch, **options)
    return caught.value.error_code, str(caught.value)
