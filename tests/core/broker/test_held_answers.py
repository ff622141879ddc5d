"""The controller's answers to clients: which brokers each waits for, and how long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kafkalite.core.broker.held_answers import HELD_MAX, HeldAnswers
from kafkalite.testing.simulation import World

BROKERS = {1, 2, 3}


class Story:
    """The answers, and when each was released."""

    def __init__(self, world: World) -> None:
        self.answers = HeldAnswers()
        self.released: dict[str, float] = {}
        self._world = world
        for broker_id in BROKERS:
            self.has(broker_id, 0, end=0)

    def hold(self, name: str, offset: int, asked: int = 1) -> None:
        began = self._world.seconds

        def release() -> None:
            assert name not in self.released
            self.released[name] = round(self._world.seconds - began, 3)

        self.answers.hold(offset, asked, BROKERS, release)

    def has(self, broker_id: int, offset: int, end: int) -> None:
        self.answers.note(broker_id, offset, end, BROKERS)


def play(tell: Callable[[Story], None]) -> dict[str, float]:
    """When each answer was released, in seconds after it was there."""
    with World() as world:
        host = world.host("controller")
        stories: list[Story] = []

        async def begin() -> None:
            stories.append(Story(world))
            tell(stories[0])

        world.result(host, begin())
        world.pass_seconds(60)
        return stories[0].released


def test_an_answer_waits_until_all_brokers_have_the_change() -> None:
    def tell(story: Story) -> None:
        story.hold("known", 0)
        assert [*story.released] == ["known"]
        story.hold("new", 5)
        for broker_id in (2, 1):
            story.has(broker_id, 5, end=5)
            story.has(3, 4, end=5)
        assert [*story.released] == ["known"]
        story.has(3, 5, end=5)

    assert play(tell) == {"known": 0, "new": 0}


def test_it_waits_a_second_for_others_and_five_for_the_broker_that_was_asked() -> None:
    def tell(story: Story) -> None:
        story.hold("others", 5, asked=1)
        story.has(1, 5, end=5)
        story.hold("asked", 5, asked=2)
        story.hold("unknown", 5, asked=7)

    assert play(tell) == {"others": 1, "asked": 5, "unknown": 5}


def test_a_late_broker_is_not_waited_for_until_it_has_everything() -> None:
    def tell(story: Story) -> None:
        story.hold("first", 5)
        story.has(1, 5, end=5)
        story.has(2, 5, end=5)

        def later() -> None:
            story.has(3, 3, end=5)
            story.hold("late", 5)
            story.has(3, 5, end=5)
            story.hold("next", 6)
            story.has(1, 6, end=6)
            story.has(2, 6, end=6)

        asyncio.get_running_loop().call_later(2, later)

    assert play(tell) == {"first": 1, "late": 0, "next": 1}


def test_no_answer_waits_for_a_broker_whose_registration_has_ended() -> None:
    def tell(story: Story) -> None:
        story.hold("others", 5, asked=1)
        story.hold("asked", 5, asked=3)
        for broker_id in (1, 2):
            story.has(broker_id, 5, end=5)
        story.answers.keep({1, 2})

    assert play(tell) == {"others": 0, "asked": 5}


def test_no_more_answers_are_held_than_is_good_and_none_after_the_end() -> None:
    def tell(story: Story) -> None:
        for number in range(HELD_MAX + 2):
            story.hold(str(number), 5)
        assert [*story.released] == [str(HELD_MAX), str(HELD_MAX + 1)]
        story.answers.release_all()
        assert len(story.released) == HELD_MAX + 2

    assert {*play(tell).values()} == {0}
