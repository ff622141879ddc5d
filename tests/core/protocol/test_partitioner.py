"""Partitions of keys against two independent clients; split against the loop that defines it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.core.protocol import partitioner, record_codec, records_pure
from kafkalite.core.protocol.partitioner import to_positive
from kafkalite.core.types import Columns

TWINS = [records_pure]
if record_codec.NATIVE:
    TWINS.append(record_codec)
twins = pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.__name__.rpartition(".")[2])

JAVA = {  # apache/kafka UtilsTest
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@twins
@pytest.mark.parametrize(("key", "expected"), JAVA.items())
def test_murmur2_is_java_s(twin, key, expected):
    assert twin.murmur2(key) == expected & 0xFFFFFFFF


@pytest.mark.slow
@twins
@settings(deadline=None)
@given(key=st.binary(max_size=100))
def test_murmur2_agrees_with_other_clients(twin, key):
    from aiokafka import partitioner as aiokafka
    from kafka.partitioner import default as kafka

    assert twin.murmur2(key) == kafka.murmur2(key) & 0xFFFFFFFF == aiokafka.murmur2(key)


@twins
@settings(deadline=None)
@given(keys=st.lists(st.none() | st.binary(max_size=12)), count=st.integers(1, 2**31 - 1))
def test_partition_column(twin, keys, count):
    assert twin.partition_column(keys, count) == [
        -1 if key is None else to_positive(records_pure.murmur2(key)) % count for key in keys
    ]
    assert twin.partition_column(tuple(keys), count) == twin.partition_column(keys, count)


def test_to_positive_clears_the_sign():
    assert to_positive(-1) == to_positive(0xFFFFFFFF) == 0x7FFFFFFF
    assert to_positive(5) == 5


@twins
@pytest.mark.parametrize("key", ["text", bytearray(b"x"), 3])
def test_only_bytes_have_a_partition(twin, key):
    with pytest.raises(TypeError, match=f"key of record 1 is {type(key).__name__}"):
        twin.partition_column([b"a", key], 4)
    with pytest.raises(TypeError, match=f"key is {type(key).__name__}"):
        twin.murmur2(key)


@twins
@pytest.mark.parametrize("count", [0, -1, 2**31])
def test_partition_count_is_checked(twin, count):
    with pytest.raises(ValueError, match=f"{count} partitions"):
        twin.partition_column([b"a"], count)
    with pytest.raises(ValueError, match=f"{count} partitions"):
        twin.split(Columns([], [], []), [], count)


@st.composite
def splits(draw):
    count = draw(st.integers(1, 5))
    partitions = draw(st.lists(st.integers(0, count - 1), max_size=30))
    n = len(partitions)
    rows = range(n)
    return (
        Columns(
            [b"k%d" % i for i in rows],
            tuple(object() for _ in rows),
            range(n),
            range(100, 100 + n) if draw(st.booleans()) else None,
            [((f"h{i}", None),) for i in rows] if draw(st.booleans()) else None,
        ),
        partitions,
        count,
    )


@twins
@settings(deadline=None)
@given(case=splits())
def test_split_is_the_loop_that_defines_it(twin, case):
    columns, partitions, count = case
    parts = twin.split(columns, partitions, count)
    assert len(parts) == count
    for number, part in enumerate(parts):
        expected = columns.where([partition == number for partition in partitions])
        assert part == expected


@twins
@pytest.mark.parametrize("partition", [-1, 3, 2**31, -(2**31)])
def test_split_refuses_a_partition_that_is_none(twin, partition):
    columns = Columns([b"a", b"b"], [b"", b""], [0, 0])
    message = f"partition of record 1 is {partition}, expected 0 to 2"
    with pytest.raises(ValueError, match=message):
        twin.split(columns, [0, partition], 3)
    with pytest.raises(ValueError, match="fit 64 bits"):
        twin.split(columns, [0, 2**63], 3)
    with pytest.raises(TypeError, match="partition of record 0 is str"):
        twin.split(columns, ["0", 1], 3)


@twins
def test_split_refuses_columns_of_different_lengths(twin):
    with pytest.raises(ValueError, match="different lengths"):
        twin.split(Columns([b"a"], [b"a"], [1]), [0, 0], 2)
    with pytest.raises(ValueError, match="different lengths"):
        twin.split(Columns([b"a"], [b"a", b"b"], [1, 2]), [0, 0], 2)


@twins
def test_columns_that_change_while_they_are_split_are_refused_or_kept(twin):
    """The index of a partition runs Python code, which may shorten what is being read."""
    values = [b"v"] * 100

    class Shrinks:
        def __index__(self):
            values.clear()
            return 0

    partitions = [Shrinks()] + [0] * 99
    with pytest.raises((ValueError, IndexError)):
        twin.split(Columns([b"k"] * 100, values, [0] * 100), partitions, 2)


def test_the_fastest_twin_is_chosen():
    assert partitioner.split is TWINS[-1].split
    assert partitioner.NO_PARTITION == -1
