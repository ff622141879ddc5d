"""Packets: what comes out is what went in, whatever the columns are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.columns import FEW, Form
from kafkalite.core.protocol.record_codec import NATIVE, Int64s, Spans
from kafkalite.core.types import Columns
from kafkalite.errors import CorruptBatchError
from kafkalite.spark.topology import packets
from kafkalite.spark.topology.packets import pack, unpack

blobs = st.none() | st.binary(max_size=30)
times = st.integers(-1, 2**60)
headers = st.lists(st.tuples(st.text(max_size=3), blobs), max_size=2).map(tuple)
rows = st.lists(st.tuples(blobs, blobs, times, st.integers(1, 2**10), headers), max_size=20)


def columns_of(found: Sequence[Any], *, offsets: bool, headed: bool, forms: bool) -> Columns:
    keys, values, stamps, steps, heads = map(list, zip(*found, strict=True)) if found else [[]] * 5
    places = [sum(steps[: i + 1]) for i in range(len(steps))]
    return Columns(
        Spans.gathered(keys) or keys if forms else keys,
        Spans.gathered(values) or values if forms else values,
        Int64s(stamps) if forms else stamps,
        places if offsets else None,
        heads if headed else None,
    )


def plain(columns: Columns) -> list[Any]:
    heads = columns.headers or [()] * len(columns)
    offsets = [None] * len(columns) if columns.offsets is None else columns.offsets
    return list(zip(columns.keys, columns.values, columns.timestamps, offsets, heads, strict=True))


@given(found=rows, offsets=st.booleans(), headed=st.booleans(), many=st.booleans())
def test_a_packet_gives_back_its_records(
    found: list[Any], offsets: bool, headed: bool, many: bool
) -> None:
    columns = columns_of(found * (FEW if many else 1), offsets=offsets, headed=headed,
                         forms=many and NATIVE)  # fmt: skip
    back = unpack(memoryview(pack(columns)))
    assert plain(back) == plain(columns)
    assert (back.offsets is None) == (columns.offsets is None)


def test_a_large_packet_has_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packets, "BATCH_BYTES", 1_000)
    offsets = [3 * i for i in range(500)]
    columns = Columns([b"k"] * 500, [b"%d" % i for i in range(500)], [7] * 500, offsets)
    packet = pack(columns)
    assert packet.count(b"k") == 500
    assert plain(unpack(packet)) == plain(columns)


def test_a_large_packet_makes_no_objects() -> None:
    count = 10 * FEW
    columns = unpack(pack(Columns([b"k"] * count, [b"v"] * count, [7] * count)))
    found = columns.keys, columns.values, columns.timestamps
    assert all(isinstance(column, Form) is NATIVE for column in found)


@pytest.mark.parametrize("damage", [b"", b"\x07", b"\x00junk"])
def test_bytes_that_are_no_packet_are_refused(damage: bytes) -> None:
    with pytest.raises(CorruptBatchError):
        unpack(damage)


def test_a_packet_that_was_cut_or_changed_is_refused() -> None:
    packet = pack(Columns([b"key"], [b"value"], [7]))
    for damaged in (packet[:-1], packet + b"x", packet.replace(b"value", b"vague")):
        with pytest.raises(CorruptBatchError):
            unpack(damaged)
