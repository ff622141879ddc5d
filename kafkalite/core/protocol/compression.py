"""The codecs of record batches: gzip, snappy, lz4, zstd; decompression is bounded.        [P]

Owns   the framings that Kafka's Java client wrote first and everybody follows:

       snappy   xerial: 82 'SNAPPY' 00 | version int32 | compatible int32 | blocks...
                        block: length int32 | raw snappy of at most 32 KiB
                read also without the frame, as some clients write it
       lz4      one LZ4 frame with independent blocks of 64 KiB, without checksums; on reading,
                linked blocks and bytes after the frame are refused, as Kafka's readers do
       zstd     one frame or several        gzip     one member or several

Never  allocates more than `decompressed_bytes_max` and one block for what others compressed: the
       output is sized by what the data says of itself, as far as that is likely, and grown while
       it was too small. A few bytes that claim to be many cost nothing.
Fails  with CorruptBatchError, naming the codec and the sizes.
Source KIP-57 (lz4), KIP-110 (zstd); apache/kafka Lz4BlockOutputStream; xerial snappy-java
       SnappyOutputStream; LZ4 frame format 1.6; RFC 8878; RFC 1952.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from mmap import mmap
from struct import Struct
from typing import Any, Final, TypeAlias

import cramjam

from kafkalite.errors import CorruptBatchError, DecompressedTooLarge

Buffer: TypeAlias = bytes | bytearray | memoryview

DECOMPRESSED_BYTES_MAX: Final = 128 * 1024 * 1024

_INT32: Final = Struct(">i")
_UINT32_LITTLE: Final = Struct("<I")

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + _INT32.pack(1) + _INT32.pack(1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024

_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_HEADER: Final = _LZ4_MAGIC + b"\x60\x40\x82"  # version 1, independent, 64 KiB; its checksum
_LZ4_BLOCK_BYTES: Final = 64 * 1024
_LZ4_END: Final = bytes(4)
_LZ4_STORED: Final = 0x8000_0000  # a block's high bit: its bytes are not compressed
_LZ4_VERSION, _LZ4_INDEPENDENT = 0x40, 0x20
_LZ4_BLOCK_CHECKSUM, _LZ4_CONTENT_SIZE, _LZ4_CONTENT_CHECKSUM = 0x10, 0x08, 0x04
_LZ4_BLOCK_BYTES_MAX: Final = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}

_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_LEVEL: Final = 3
_GZIP_LEVEL: Final = 6

_PAGES_FROM_BYTES: Final = 1 << 20
_GROWTH: Final = 4
_LIKELY_RATIO: Final = 64  # a claim beyond it is tried in steps, so that a lie stays cheap
_SNAPPY_RATIO_MAX: Final = 32  # the format itself stays below 22: 64 bytes by a copy of 3


class Compression(IntEnum):
    """A batch's codec: bits 0-2 of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(data: Buffer, compression: Compression) -> Buffer:
    """`data` in the codec's framing, at Kafka's default level."""
    match compression:
        case Compression.NONE:
            return data
        case Compression.GZIP:
            return bytes(cramjam.gzip.compress(data, level=_GZIP_LEVEL))
        case Compression.SNAPPY:
            return b"".join(_snappy_parts(memoryview(data)))
        case Compression.LZ4:
            return b"".join(_lz4_parts(memoryview(data)))
        case Compression.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL))


def decompress(
    data: Buffer,
    compression: Compression,
    *,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    scratch: bytearray | None = None,
) -> Buffer:
    """The bytes that `compress` was given.

    With `scratch` they may lie in it, and are good until it is used again: new memory of such
    sizes costs more than an lz4 batch takes to decompress.

    CorruptBatchError when `data` is not what the codec writes, or holds more than
    `decompressed_bytes_max` bytes.
    """
    if compression is Compression.NONE:
        return data
    view = memoryview(data)
    match compression:
        case Compression.SNAPPY:
            return _snappy_decompress(view, decompressed_bytes_max, scratch)
        case Compression.LZ4:
            size = _lz4_size_at_most(view)
            return _decompress(cramjam.lz4, "lz4", view, size, decompressed_bytes_max, scratch)
        case Compression.GZIP:
            size = _UINT32_LITTLE.unpack_from(view, len(view) - 4)[0] if len(view) >= 18 else 0
            return _decompress(cramjam.gzip, "gzip", view, size, decompressed_bytes_max, scratch)
        case Compression.ZSTD:
            size = _zstd_content_size(view)
            return _decompress(cramjam.zstd, "zstd", view, size, decompressed_bytes_max, scratch)


def _decompress(
    codec: Any, name: str, view: memoryview, size: int, limit: int, scratch: bytearray | None
) -> Buffer:
    """Decompresses into a buffer of `size` bytes (a claim, 0: unknown), grown up to `limit`."""
    if not len(view):
        raise CorruptBatchError(f"{name}: no bytes to decompress")
    capacity = min(size or _GROWTH * len(view), _LIKELY_RATIO * len(view), limit)
    while True:
        output = _room(capacity, scratch)
        try:
            written = codec.decompress_into(view, output)
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):
                raise CorruptBatchError(f"{name}: {error} in {len(view)} bytes") from error
        else:
            return memoryview(output)[:written]
        if capacity >= limit:
            raise DecompressedTooLarge(
                f"{name}: {len(view)} bytes decompress to more than the allowed {limit}"
            )
        del output
        capacity = min(max(capacity, 1024) * _GROWTH, limit)


def _room(size: int, scratch: bytearray | None) -> memoryview:
    """`size` writable bytes: of `scratch` if it is large enough, else new ones.

    A large bytearray is filled with zeros while no other thread may run; pages are made when they
    are written to.
    """
    if scratch is not None and size <= len(scratch):
        return memoryview(scratch)[:size]
    return memoryview(mmap(-1, size) if size >= _PAGES_FROM_BYTES else bytearray(size))


def _snappy_parts(view: memoryview) -> Iterator[bytes]:
    yield _XERIAL_HEADER
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        yield _INT32.pack(len(block))
        yield block


def _snappy_decompress(view: memoryview, limit: int, scratch: bytearray | None) -> Buffer:
    """The blocks' contents. Two walks: the first adds up the sizes that the blocks declare."""
    framed = bytes(view[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC
    blocks = _xerial_blocks(view) if framed else [view]
    try:
        sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
        if sum(sizes) > min(limit, _SNAPPY_RATIO_MAX * len(view)):
            is_lie = sum(sizes) > _SNAPPY_RATIO_MAX * len(view)
            raise (CorruptBatchError if is_lie else DecompressedTooLarge)(
                f"snappy: {len(view)} bytes claim to be {sum(sizes)} bytes; allowed are {limit}"
            )
        output = _room(sum(sizes), scratch)
        window, start = memoryview(output), 0
        for block, size in zip(blocks, sizes, strict=True):
            cramjam.snappy.decompress_raw_into(block, window[start : start + size])
            start += size
    except cramjam.DecompressionError as error:
        raise CorruptBatchError(f"{error} in {len(view)} bytes") from error
    return output


def _xerial_blocks(view: memoryview) -> list[memoryview]:
    blocks = []
    position = len(_XERIAL_HEADER)
    while position < len(view):
        left = len(view) - position - _INT32.size
        length = _INT32.unpack_from(view, position)[0] if left >= 0 else -1
        if not 0 < length <= left:
            raise CorruptBatchError(
                f"snappy: block of {length} bytes at byte {position} of {len(view)}"
            )
        position += _INT32.size
        blocks.append(view[position : position + length])
        position += length
    return blocks


def _lz4_parts(view: memoryview) -> Iterator[Buffer]:
    yield _LZ4_HEADER
    for start in range(0, len(view), _LZ4_BLOCK_BYTES):
        plain = view[start : start + _LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            yield _UINT32_LITTLE.pack(len(block))
            yield block
        else:
            yield _UINT32_LITTLE.pack(len(plain) | _LZ4_STORED)
            yield plain
    yield _LZ4_END


def _lz4_size_at_most(view: memoryview) -> int:
    """The largest decompressed size of the frame, from a walk over its blocks.

    Refuses what Java clients cannot read (linked blocks, dictionaries, other versions) and what
    they would not see (bytes after the frame).
    """
    if len(view) < len(_LZ4_HEADER) or bytes(view[:4]) != _LZ4_MAGIC:
        raise CorruptBatchError(f"lz4: {len(view)} bytes that do not begin with a frame")
    flags, block_descriptor = view[4], view[5]
    block_bytes_max = _LZ4_BLOCK_BYTES_MAX.get(block_descriptor >> 4)
    if flags & 0xC3 != _LZ4_VERSION or block_bytes_max is None or block_descriptor & 0x0F:
        raise CorruptBatchError(f"lz4: frame flags {flags:#04x}, {block_descriptor:#04x}")
    if not flags & _LZ4_INDEPENDENT:
        raise CorruptBatchError("lz4: the frame's blocks are linked; Kafka's readers refuse them")
    checksum_bytes = 4 if flags & _LZ4_BLOCK_CHECKSUM else 0
    position = 15 if flags & _LZ4_CONTENT_SIZE else 7
    blocks = 0
    while position + 4 <= len(view):
        size = _UINT32_LITTLE.unpack_from(view, position)[0] & ~_LZ4_STORED
        position += 4
        if size == 0:
            break
        position += size + checksum_bytes
        blocks += 1
    else:
        raise CorruptBatchError(f"lz4: block {blocks} ends after the {len(view)} bytes")
    position += 4 if flags & _LZ4_CONTENT_CHECKSUM else 0
    if position != len(view):
        raise CorruptBatchError(f"lz4: the frame ends at byte {position} of {len(view)}")
    return blocks * block_bytes_max


def _zstd_content_size(view: memoryview) -> int:
    """The content size in the (first) frame's header, 0 if the header does not have it."""
    if len(view) < 18 or bytes(view[:4]) != _ZSTD_MAGIC:
        return 0
    descriptor = view[4]
    single_segment = descriptor & 0x20
    width = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    start = 5 + (0 if single_segment else 1) + (0, 1, 2, 4)[descriptor & 3]
    size = int.from_bytes(view[start : start + width], "little")
    return size + 256 if width == 2 else size
