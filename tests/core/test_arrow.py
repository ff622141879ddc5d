"""Columns as Arrow record batches: forms and lists give the same."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.arrow import MILLISECONDS, SCHEMA, integers
from kafkalite.core.protocol import records
from kafkalite.core.protocol.record_codec import decode_forms, decode_records
from kafkalite.core.types import EMPTY_COLUMNS, Columns

blobs = st.none() | st.binary(max_size=6)
rows = st.tuples(
    blobs, blobs, st.integers(-(2**60), 2**60), st.lists(st.tuples(st.text(max_size=2), blobs))
)


@given(st.lists(rows, min_size=1, max_size=10), st.booleans(), st.data())
def test_forms_and_lists_give_the_same_record_batch(given_rows, has_gaps, data):
    keys, values, timestamps, headers = map(list, zip(*given_rows, strict=True))
    named = [tuple(row) for row in headers]
    offsets = [i * 3 if has_gaps else i for i in range(len(keys))]
    columns = Columns(keys, values, timestamps, offsets, named if any(named) else None)
    batch = records.encode(columns)
    body = memoryview(batch)[records.BATCH_HEADER_BYTES :]
    arguments = (body, len(columns), 0, timestamps[0], None)
    start = data.draw(st.integers(0, len(keys)))
    lists = decode_records(*arguments).slice(start, len(keys))
    forms = decode_forms(*arguments).slice(start, len(keys))
    made = forms.to_arrow()
    made.validate(full=True)
    assert made.equals(lists.to_arrow())
    assert made.schema == SCHEMA
    assert made.column("key").to_pylist() == keys[start:]
    assert made.column("value").to_pylist() == values[start:]
    assert made.column("timestamp").cast(pa.int64()).to_pylist() == timestamps[start:]
    assert made.column("offset").to_pylist() == offsets[start:]
    got = [[(each["key"], each["value"]) for each in row] for row in made["headers"].to_pylist()]
    assert got == headers[start:]


def test_records_without_offsets_and_no_records():
    batch = Columns([b"k"], [None], [1_000]).to_arrow()
    (row,) = batch.to_pylist()
    assert row["timestamp"] == datetime.fromtimestamp(1, UTC)
    assert (row["offset"], row["headers"]) == (None, [])
    assert EMPTY_COLUMNS.to_arrow().num_rows == 0


def test_an_array_keeps_the_bytes_that_it_looks_at():
    body = records.encode(Columns([b"k"] * 9, [b"v"] * 9, list(range(9))))[61:]
    batch = decode_forms(memoryview(body), 9, 0, 0, None).to_arrow()
    del body
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == list(range(9))
    assert batch.column("value").to_pylist() == [b"v"] * 9


def test_ranges_of_any_step_are_integers():
    for column in (range(5, 9), range(0), range(9, 0, -3), (4, 2)):
        assert integers(column).to_pylist() == list(column)
    assert integers(range(3), MILLISECONDS).type == MILLISECONDS


def test_entries_that_are_no_bytes_are_refused():
    with pytest.raises(pa.ArrowTypeError):
        Columns([b"k"], [3.5], [1]).to_arrow()
