"""The controller's feed: its last records, from which brokers keep their images.            [P]

    offset    0        1          2        …        end
    record    topic    partition  broker   …
              ▲ the oldest that is kept             ▲ the next one

A feed belongs to one controller epoch, and counts its records from 0. A broker asks for those from
its offset on: a reading of the feed takes no image and writes nothing. A broker that knows another
epoch, or an offset that is no longer kept, gets a snapshot: records whose fold is the whole image.

Owns   the offsets; a bounded number of records and bytes.
Never  waits: `answer` is None where there is nothing new, and the rim asks again after an append.
Source KIP-500, KIP-630; apache/kafka `MetadataLoader`, `SnapshotGenerator`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from kafkalite.core.cluster.image import ClusterImage, ClusterRecord, snapshot_records
from kafkalite.core.protocol.peers import (
    FollowMetadataRequest,
    FollowMetadataResponse,
    MetadataRecord,
)

RECORDS_MAX: Final = 20_000
BYTES_MAX: Final = 16 << 20


@dataclass(slots=True)
class Feed:
    """The feed of the controller `controller_id` under `controller_epoch`."""

    controller_id: int
    controller_epoch: int
    records_max: int = RECORDS_MAX
    bytes_max: int = BYTES_MAX
    first_offset: int = 0  # of the oldest record that is kept
    _records: list[MetadataRecord] = field(default_factory=list)
    _size_bytes: int = 0
    _snapshot: tuple[ClusterImage, tuple[MetadataRecord, ...]] | None = None  # the last one made

    @property
    def end_offset(self) -> int:
        """The offset of the next record."""
        return self.first_offset + len(self._records)

    def append(self, records: Sequence[ClusterRecord]) -> None:
        """Takes records that are in force; the oldest may go."""
        added = [MetadataRecord(*record) for record in records]
        self._records += added
        self._size_bytes += sum(map(_size, added))
        going = 0
        while self._size_bytes > self.bytes_max or len(self._records) - going > self.records_max:
            self._size_bytes -= _size(self._records[going])
            going += 1
        del self._records[:going]
        self.first_offset += going

    def answer(
        self, request: FollowMetadataRequest, image: ClusterImage
    ) -> FollowMetadataResponse | None:
        """The records that a broker lacks, as many as fit, one at least; None if it has all.

        `image` is the fold of all records so far.
        """
        offset = request.offset
        is_known = request.controller_epoch == self.controller_epoch
        if not is_known or not self.first_offset <= offset <= self.end_offset:
            records = self._snapshot_of(image)
            return self._response(self.end_offset, records, is_snapshot=True)
        if offset == self.end_offset:
            return None
        return self._response(offset, self._from(offset, request.max_bytes), is_snapshot=False)

    def _from(self, offset: int, bytes_max: int) -> tuple[MetadataRecord, ...]:
        first = last = offset - self.first_offset
        size = 0
        while last < len(self._records):
            size += _size(self._records[last])
            if size > bytes_max and last > first:
                break
            last += 1
        return tuple(self._records[first:last])

    def _snapshot_of(self, image: ClusterImage) -> tuple[MetadataRecord, ...]:
        """All brokers ask a new controller at once, so the last snapshot is kept."""
        if self._snapshot is None or self._snapshot[0] is not image:
            made = tuple(MetadataRecord(*record) for record in snapshot_records(image))
            self._snapshot = image, made
        return self._snapshot[1]

    def _response(
        self, base_offset: int, records: tuple[MetadataRecord, ...], *, is_snapshot: bool
    ) -> FollowMetadataResponse:
        return FollowMetadataResponse(
            controller_id=self.controller_id,
            controller_epoch=self.controller_epoch,
            is_snapshot=is_snapshot,
            base_offset=base_offset,
            records=records,
        )


def _size(record: MetadataRecord) -> int:
    return len(record.path) + len(record.value or b"")
