"""The feed and its followers: every broker's image becomes the controller's."""

from __future__ import annotations

from random import Random

import pytest

from kafkalite.core.cluster import image as images
from kafkalite.core.cluster.feed import Feed
from kafkalite.core.cluster.following import ImageFollower
from kafkalite.core.cluster.image import ClusterImage, ClusterRecord
from kafkalite.core.protocol.codec import decode, encode
from kafkalite.core.protocol.peers import (
    FollowMetadataRequest,
    FollowMetadataResponse,
    MetadataRecord,
)


def ids(number: int) -> ClusterRecord:
    return images.producer_ids_record(number)


class Controlled:
    """A controller's feed and image."""

    def __init__(self, epoch: int = 1, image: ClusterImage | None = None, **bounds: int) -> None:
        self.feed = Feed(1, epoch, **bounds)
        self.image = image or ClusterImage()

    def append(self, *numbers: int) -> None:
        records = [ids(number) for number in numbers]
        self.image = images.replay(self.image, records)
        self.feed.append(records)

    def poll(self, follower: ImageFollower, bytes_max: int = 1 << 20) -> bool | None:
        """One long poll, over the wire; None if there was nothing to answer."""
        request = follower.request(2, 20, 500)
        request = FollowMetadataRequest(*(getattr(request, n) for n in FIELDS), bytes_max)
        response = self.feed.answer(request, self.image)
        if response is None:
            return None
        return follower.take(decode(FollowMetadataResponse, encode(response, 0), 0))


FIELDS = ("broker_id", "broker_epoch", "controller_epoch", "offset", "max_wait_ms")


def test_a_new_follower_gets_a_snapshot_and_then_deltas() -> None:
    controller, follower = Controlled(), ImageFollower()
    controller.append(1, 2)
    assert controller.poll(follower) is True
    assert (follower.controller_epoch, follower.offset) == (1, 2)
    assert follower.image == controller.image
    assert controller.poll(follower) is None
    controller.append(3, 4, 5)
    assert controller.poll(follower) is True
    assert (follower.offset, follower.image.next_producer_id_block) == (5, 5)


def test_an_empty_feed_has_a_snapshot() -> None:
    controller, follower = (
        Controlled(image=images.replay(ClusterImage(), [ids(7)])),
        ImageFollower(),
    )
    assert controller.poll(follower) is True
    assert (follower.offset, follower.image.next_producer_id_block) == (0, 7)
    assert controller.poll(follower) is None


def test_an_answer_holds_as_much_as_fits_and_one_record_at_least() -> None:
    controller, follower = Controlled(), ImageFollower()
    controller.poll(follower)
    controller.append(*range(1, 8))
    assert controller.poll(follower, 1) is True
    assert follower.offset == 1
    assert controller.poll(follower, 3 * len("/producer_ids" + '{"next_block_start":1}')) is True
    assert follower.offset == 4


@pytest.mark.parametrize("bounds", [{"records_max": 3}, {"bytes_max": 110}])
def test_a_feed_is_bounded_and_late_followers_get_a_snapshot(bounds: dict[str, int]) -> None:
    controller, late, on_time = Controlled(**bounds), ImageFollower(), ImageFollower()
    controller.poll(late)
    controller.append(1, 2)
    controller.poll(on_time)
    controller.append(3, 4, 5)
    assert (controller.feed.first_offset, controller.feed.end_offset) == (2, 5)
    request = late.request(2, 20, 0)
    answer = controller.feed.answer(request, controller.image)
    assert answer is not None
    assert (answer.is_snapshot, answer.base_offset) == (True, 5)
    answer = controller.feed.answer(on_time.request(2, 20, 0), controller.image)
    assert answer is not None
    assert not answer.is_snapshot
    controller.append(*range(6, 20))
    assert controller.feed.end_offset - controller.feed.first_offset == 3
    for follower in (late, on_time):
        controller.poll(follower)
        assert follower.image == controller.image


def test_a_new_controller_sends_a_snapshot_though_offsets_look_the_same() -> None:
    first, follower = Controlled(1), ImageFollower()
    first.append(1, 2)
    first.poll(follower)
    second = Controlled(2, first.image)
    second.append(8, 9)
    assert second.poll(follower) is True
    assert (follower.controller_epoch, follower.offset) == (2, 2)
    assert follower.image.next_producer_id_block == 9


def answer(
    epoch: int, offset: int, *numbers: int, snapshot: bool = False
) -> FollowMetadataResponse:
    records = tuple(MetadataRecord(*ids(number)) for number in numbers)
    return FollowMetadataResponse(
        controller_epoch=epoch, is_snapshot=snapshot, base_offset=offset, records=records
    )


@pytest.mark.parametrize(
    ("given", "asks_for"),
    [
        (answer(1, 5, 9), 5),
        (answer(1, 5, 9, snapshot=True), 5),
        (answer(2, 6, 9), -1),
        (answer(2, 4, 9, 9), 5),
        (answer(2, 4, 9, snapshot=True), 5),
        (answer(3, 5, 9), 5),
    ],
    ids=["old epoch", "old epoch's snapshot", "gap", "again", "older snapshot", "other epoch"],
)
def test_what_does_not_continue_is_refused(given: FollowMetadataResponse, asks_for: int) -> None:
    """After a gap the follower asks for a snapshot; it loses nothing of what it has."""
    follower = ImageFollower(images.replay(ClusterImage(), [ids(5)]), 2, 5)
    before = follower.image
    assert follower.take(given) is False
    assert follower.image is before
    assert (follower.controller_epoch, follower.offset) == (2, asks_for)
    assert follower.take(answer(2, 7, 7, snapshot=True)) is True
    assert (follower.offset, follower.image.next_producer_id_block) == (7, 7)


def test_any_followers_of_any_controllers_end_with_their_image() -> None:
    chance = Random(7)
    controller = Controlled(records_max=5)
    followers = [ImageFollower() for _ in range(3)]
    late: list[FollowMetadataResponse] = []
    for number in range(400):
        controller.append(*[number + 1] * chance.randrange(4))
        if chance.random() < 0.02:
            controller = Controlled(controller.feed.controller_epoch + 1, controller.image)
        for follower in followers:
            if chance.random() < 0.4:
                request = follower.request(2, 20, 0)
                if (response := controller.feed.answer(request, controller.image)) is not None:
                    late.append(response)
                controller.poll(follower, chance.randrange(200))
            if late and chance.random() < 0.3:
                before = follower.controller_epoch, follower.offset
                if follower.take(chance.choice(late)):
                    assert (follower.controller_epoch, follower.offset) >= before
    for follower in followers:
        while controller.poll(follower) is not None:
            pass
        assert follower.image == controller.image
