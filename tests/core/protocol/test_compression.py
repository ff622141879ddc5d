"""The codecs: round trips, the framings byte by byte, hostile bytes, and the bound on bombs."""

from __future__ import annotations

import gzip
import random
import struct
import tracemalloc
from contextlib import suppress

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.core.protocol import compression
from kafkalite.core.protocol.compression import Compression, compress, decompress
from kafkalite.errors import CorruptBatchError

CODECS = [codec for codec in Compression if codec is not Compression.NONE]
XERIAL = bytes.fromhex("82534e41505059000000000100000001")
codecs = pytest.mark.parametrize("codec", CODECS)


def incompressible(size):
    return random.Random(size).randbytes(size)


@codecs
def test_round_trip(codec):
    for size in (1, 100, 32_768, 32_769, 65_536, 65_537, 300_000):
        for data in (incompressible(size), bytes(size), b"kafka" * (size // 5 + 1)):
            unpacked = decompress(compress(data, codec), codec)
            assert unpacked == data, f"{size} bytes, {data[:10]!r} and so on"


@codecs
@settings(deadline=None)
@given(data=st.binary(max_size=2000))
def test_round_trip_of_any_buffer(codec, data):
    packed = compress(memoryview(data), codec)
    assert decompress(memoryview(bytearray(packed)), codec) == data


def test_none_is_the_same_bytes():
    data = b"abc"
    assert compress(data, Compression.NONE) is data
    assert decompress(data, Compression.NONE) is data


@codecs
def test_what_decompresses_to_exactly_the_limit_is_accepted_and_one_more_byte_is_not(codec):
    packed = compress(bytes(100_000), codec)
    assert decompress(packed, codec, decompressed_bytes_max=100_000) == bytes(100_000)
    with pytest.raises(CorruptBatchError, match="99999"):
        decompress(packed, codec, decompressed_bytes_max=99_999)


@codecs
def test_a_bomb_allocates_no_more_than_the_limit_and_a_block(codec):
    packed = compress(bytes(16 * 1024 * 1024), codec)
    tracemalloc.start()
    with pytest.raises(CorruptBatchError):
        decompress(packed, codec, decompressed_bytes_max=1_000_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000 + 200_000


@codecs
def test_a_small_lie_costs_little(codec):
    """The sizes that a batch claims are not believed beyond what its bytes make likely."""
    data = b"0123456789" * 10
    match codec:
        case Compression.GZIP:
            packed = gzip.compress(data)[:-4] + b"\xff\xff\xff\x07"
        case Compression.SNAPPY:
            packed = b"\x80\x80\x80\x3f" + bytes(compress(data, codec))
        case Compression.LZ4:  # ten empty blocks that could be of 4 MiB each
            packed = bytes.fromhex("04224d18607073") + b"\1\0\0\0\0" * 10 + bytes(4)
        case _:
            packed = b"\x28\xb5\x2f\xfd\xa0\xff\xff\xff\x07" + bytes(compress(data, codec))[6:]
    tracemalloc.start()
    with suppress(CorruptBatchError):
        decompress(packed, codec)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


@codecs
def test_output_larger_than_the_first_guess_is_read_whole(codec):
    """A gzip of two members and a zstd frame without a size say too little of what they hold."""
    data = b"0123456789" * 50_000
    match codec:
        case Compression.GZIP:
            packed = gzip.compress(data) + gzip.compress(b"end")
            data += b"end"
        case Compression.ZSTD:
            compressor = cramjam.zstd.Compressor()
            compressor.compress(data)
            packed = bytes(compressor.finish())
        case _:
            packed = compress(data, codec)
    assert decompress(packed, codec) == data


@codecs
@pytest.mark.parametrize("garbage", [b"", b"\x01", b"garbage", b"\xff" * 40, bytes(40)])
def test_garbage_is_refused(codec, garbage):
    with pytest.raises(CorruptBatchError):
        decompress(garbage, codec)


@codecs
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_bytes_are_refused_or_decompress_within_the_limit(codec, data):
    packed = bytearray(compress(b"a record, a record, another record" * 20, codec))
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    packed = packed[: data.draw(st.integers(0, len(packed)))]
    with suppress(CorruptBatchError):
        assert len(decompress(packed, codec, decompressed_bytes_max=5_000)) <= 5_000


# ---- snappy ------------------------------------------------------------------------------------


def test_snappy_is_written_in_xerial_blocks_of_32_kib():
    packed = bytes(compress(bytes(70_000), Compression.SNAPPY))
    assert packed[:16] == XERIAL
    sizes, position = [], 16
    while position < len(packed):
        (length,) = struct.unpack_from(">i", packed, position)
        sizes.append(cramjam.snappy.decompress_raw_len(packed[position + 4 :][:length]))
        position += 4 + length
    assert sizes == [32_768, 32_768, 4_464]


def test_snappy_is_read_without_the_frame():
    assert decompress(bytes(cramjam.snappy.compress_raw(b"raw" * 9)), Compression.SNAPPY) == (
        b"raw" * 9
    )


def test_snappy_block_that_lies_about_its_size_is_refused_before_anything_is_allocated():
    lie = b"\xff\xff\xff\xff\x0f" + b"\x00" * 10  # 4 GiB - 1
    for packed in (lie, XERIAL + struct.pack(">i", len(lie)) + lie):
        with pytest.raises(CorruptBatchError, match="4294967295"):
            decompress(packed, Compression.SNAPPY)


@pytest.mark.parametrize("length", [-1, 0, 11, 2**31 - 1])
def test_snappy_block_beyond_the_data_is_refused(length):
    with pytest.raises(CorruptBatchError, match=f"block of {length} bytes at byte 16 of 30"):
        decompress(XERIAL + struct.pack(">i", length) + bytes(10), Compression.SNAPPY)


def test_snappy_frame_cut_in_a_block_length_is_refused():
    with pytest.raises(CorruptBatchError, match="at byte 16 of 18"):
        decompress(XERIAL + b"\0\0", Compression.SNAPPY)


# ---- zstd --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [40, 255, 256, 300, 65_791, 65_792, 1_000_000, 5_000_000])
def test_zstd_frames_say_how_much_they_hold(size):
    """What decides how much memory is taken first; each size of the field is met once."""
    for packed in (compress(incompressible(size), Compression.ZSTD), compressed_by_zstd(size)):
        assert compression._zstd_content_size(memoryview(packed)) == size


def compressed_by_zstd(size: int) -> bytes:
    """As the reference library writes it in one go."""
    return zstandard.ZstdCompressor().compress(incompressible(size))


def test_zstd_frames_that_say_nothing_of_their_size_are_read():
    packed = zstandard.ZstdCompressor(write_content_size=False).compress(b"kafka" * 50_000)
    assert compression._zstd_content_size(memoryview(packed)) == 0
    assert decompress(packed, Compression.ZSTD) == b"kafka" * 50_000


# ---- lz4 ---------------------------------------------------------------------------------------


def test_lz4_frame_is_the_one_that_java_clients_write():
    packed = bytes(compress(bytes(1000), Compression.LZ4))
    assert packed[:7].hex() == "04224d18604082"
    assert packed[-4:] == bytes(4)
    assert bytes(cramjam.lz4.decompress(packed)) == bytes(1000)


def test_lz4_stores_what_does_not_compress():
    data = incompressible(70_000)
    packed = bytes(compress(data, Compression.LZ4))
    assert len(packed) == 7 + 4 + 65_536 + 4 + 4_464 + 4


def test_lz4_with_checksums_and_independent_blocks_is_read():
    compressor = cramjam.lz4.Compressor(content_checksum=True, block_linked=False)
    compressor.compress(b"kafka" * 50_000)
    packed = bytes(compressor.finish())
    assert decompress(packed, Compression.LZ4) == b"kafka" * 50_000
    damaged = packed[:-1] + bytes([packed[-1] ^ 1])
    with pytest.raises(CorruptBatchError, match="lz4"):
        decompress(damaged, Compression.LZ4)


@pytest.mark.parametrize("size", [3, 300_000])
@pytest.mark.parametrize("store_size", [True, False])
@pytest.mark.parametrize("block_checksum", [True, False])
def test_lz4_frames_of_another_library_are_read(size, store_size, block_checksum):
    data = b"kafka" * size
    packed = lz4.frame.compress(
        data, block_linked=False, store_size=store_size, block_checksum=block_checksum
    )
    assert decompress(packed, Compression.LZ4) == data
    with pytest.raises(CorruptBatchError, match="lz4: the frame ends at byte"):
        decompress(packed + b"\0", Compression.LZ4)


def test_lz4_with_linked_blocks_is_refused():
    compressor = cramjam.lz4.Compressor(block_linked=True)
    compressor.compress(b"kafka" * 50_000)
    with pytest.raises(CorruptBatchError, match="linked"):
        decompress(bytes(compressor.finish()), Compression.LZ4)


def test_lz4_bytes_after_the_frame_are_refused():
    packed = bytes(compress(b"abc", Compression.LZ4))
    with pytest.raises(CorruptBatchError, match=f"ends at byte {len(packed)} of {2 * len(packed)}"):
        decompress(packed * 2, Compression.LZ4)


@pytest.mark.parametrize(
    ("position", "byte"),
    [(4, 0xA0), (4, 0x61), (4, 0x62), (5, 0x30), (5, 0x41), (5, 0xC0), (0, 0x05), (6, 0x83)],
)
def test_lz4_header_that_kafka_does_not_read_is_refused(position, byte):
    packed = bytearray(compress(b"abc" * 10, Compression.LZ4))
    packed[position] = byte
    with pytest.raises(CorruptBatchError, match="lz4"):
        decompress(packed, Compression.LZ4)


def test_lz4_without_its_end_mark_is_refused():
    packed = bytes(compress(b"abc" * 10, Compression.LZ4))
    with pytest.raises(CorruptBatchError, match="block 1 ends after"):
        decompress(packed[:-4], Compression.LZ4)


# ---- lent memory -----------------------------------------------------------------------------


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("room", [0, 100, 100_000, 1 << 20])
def test_decompressed_into_lent_memory_it_is_the_same(codec: Compression, room: int) -> None:
    data = b"all the same " * 20_000
    packed = compress(data, codec)
    scratch = bytearray(room)
    for _ in range(2):
        plain = decompress(packed, codec, scratch=scratch)
        assert bytes(plain) == data
        if codec is not Compression.NONE:
            assert (getattr(plain, "obj", None) is scratch) == (room >= len(data))
    if codec is not Compression.NONE:
        with pytest.raises(CorruptBatchError):
            decompress(packed, codec, decompressed_bytes_max=len(data) - 1, scratch=scratch)
