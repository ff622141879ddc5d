"""What a peer's message may cost its reader: entries are counted, bad text is read at once."""

from __future__ import annotations

import codecs

import pytest

from kafkalite.core.protocol import primitives
from kafkalite.core.protocol.codec import decode, encode
from kafkalite.core.protocol.groups import HeartbeatRequest
from kafkalite.core.protocol.metadata import MetadataRequest, MetadataRequestTopic
from kafkalite.core.protocol.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kafkalite.errors import TooManyEntries


def test_a_message_has_no_more_entries_than_its_reader_allows() -> None:
    topics = tuple(
        OffsetCommitRequestTopic("t", tuple(OffsetCommitRequestPartition(i, 0) for i in range(3)))
        for _ in range(2)
    )
    for version in (2, 8):
        data = encode(OffsetCommitRequest("g", topics=topics), version)
        assert decode(OffsetCommitRequest, data, version, 8).topics == topics
        with pytest.raises(TooManyEntries, match="OffsetCommitRequest v"):
            decode(OffsetCommitRequest, data, version, 7)


def test_tagged_fields_count_as_entries() -> None:
    data = encode(HeartbeatRequest("g", 1, "m"), 4)[:-1] + b"\x05" + b"\x63\x00" * 5
    assert decode(HeartbeatRequest, data, 4, 5)
    with pytest.raises(TooManyEntries):
        decode(HeartbeatRequest, data, 4, 4)


def test_text_that_is_no_utf8_is_replaced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call a string: a call a byte took seconds a megabyte."""
    errors: list[UnicodeError] = []

    def counting(error: UnicodeError) -> tuple[str, int]:
        errors.append(error)
        return primitives.replace_invalid(error)

    codecs.register_error(primitives.REPLACE, counting)
    try:
        raw = b"a\xff\xfe\xc3(b" * 100
        data = encode(MetadataRequest((MetadataRequestTopic(name="x" * len(raw)),)), 1)
        read = decode(MetadataRequest, data.replace(b"x" * len(raw), raw), 1)
    finally:
        codecs.register_error(primitives.REPLACE, primitives.replace_invalid)
    assert read.topics is not None
    assert read.topics[0].name == raw.decode(errors="replace")
    assert len(errors) == 1
