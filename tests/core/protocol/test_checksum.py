"""CRC-32C against published values and the crc32c of an independent implementation."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.core.protocol import checksum
from kafkalite.core.protocol.checksum import crc32c


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),  # RFC 3720, B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_published_values(data, expected):
    assert crc32c(data) == expected


@settings(deadline=None)
@given(st.binary(max_size=300), st.integers(0, 300))
def test_every_kind_of_buffer_gives_the_same(data, start):
    expected = crc32c(data[start:])
    assert crc32c(memoryview(data)[start:]) == expected
    assert crc32c(memoryview(bytearray(data))[start:]) == expected
    assert crc32c(bytearray(data[start:])) == expected


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_agrees_with_crcmod(data):
    from crcmod.predefined import mkPredefinedCrcFun

    assert crc32c(data) == mkPredefinedCrcFun("crc-32c")(data)


def test_a_lent_bytearray_can_grow_again():
    data = bytearray(b"123456789")
    crc32c(data)
    data += b"0"  # a buffer that is still lent would refuse
    assert len(data) == 10


def test_the_choice_is_named():
    assert checksum.IMPLEMENTATION in {"google-crc32c", "crcmod"}


def test_crcmod_stands_in_where_the_c_implementation_does_not_load(monkeypatch):
    import google_crc32c

    monkeypatch.setattr(google_crc32c, "implementation", "python")
    name, compute, lend = checksum._choose()
    assert name == "crcmod"
    assert compute(lend(memoryview(b"123456789"))) == 0xE3069283
