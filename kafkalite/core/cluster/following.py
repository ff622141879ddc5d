"""A broker's image, kept by the feed of the controller.                                     [P]

    asks    (controller epoch, offset)  ──>  records from the offset on, or a snapshot
    takes   deltas that begin exactly there, snapshots that are no older
    refuses the rest; after a gap it asks for a snapshot

Owns   the image, and the metadata offset up to which it is the fold of the feed.
Never  goes back: not to an older controller epoch, nor within one to a smaller offset.
Source apache/kafka `MetadataLoader`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kafkalite.core.cluster import image as images
from kafkalite.core.cluster.image import ClusterImage, ClusterRecord
from kafkalite.core.protocol.peers import FollowMetadataRequest, FollowMetadataResponse
from kafkalite.core.types import NO_EPOCH, NO_OFFSET


@dataclass(slots=True)
class ImageFollower:
    """The image of one broker."""

    image: ClusterImage = field(default_factory=ClusterImage)
    controller_epoch: int = NO_EPOCH
    offset: int = NO_OFFSET  # of the next record; NO_OFFSET asks for a snapshot

    def request(self, node_id: int, broker_epoch: int, max_wait_ms: int) -> FollowMetadataRequest:
        """What the broker asks the controller."""
        return FollowMetadataRequest(
            node_id, broker_epoch, self.controller_epoch, self.offset, max_wait_ms
        )

    def take(self, response: FollowMetadataResponse) -> bool:
        """Folds the controller's answer; False if it does not continue what is known."""
        assert not response.error_code, response
        if response.controller_epoch < self.controller_epoch:
            return False
        is_same = response.controller_epoch == self.controller_epoch
        if response.is_snapshot:
            if is_same and response.base_offset < self.offset:
                return False
            base, offset = ClusterImage(), response.base_offset
        elif is_same and response.base_offset == self.offset:
            base, offset = self.image, response.base_offset + len(response.records)
        else:
            if is_same and response.base_offset > self.offset:
                self.offset = NO_OFFSET
            return False
        records = [ClusterRecord(record.path, record.value) for record in response.records]
        self.image = images.replay(base, records)
        self.controller_epoch, self.offset = response.controller_epoch, offset
        return True
