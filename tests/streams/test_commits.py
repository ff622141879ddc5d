"""A worker's commits, between a producer and a consumer of the test."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from test_worker_turns import IN, Turns, nothing_to_restore, passing

from kafkalite.errors import ProcessingError
from kafkalite.serde import string
from kafkalite.streams import Streams, tumbling

__all__ = ["nothing_to_restore"]  # a fixture, for every test here too


class TestCommit:
    def test_final_rows_are_in_the_log_before_the_changelog_forgets_their_window(self) -> None:
        async def scenario() -> None:
            app = Streams("app", key=string())
            app.stream("in").group_by_key().window(tumbling(10)).count(name="n").final().to("out")
            turns = Turns(app)
            await turns.assign(IN)
            turns.receive("in", 1)
            await turns._rounds.run()
            await turns._commit()
            turns.producer.events.clear()
            turns.receive("in", 30, first=1)
            await turns._rounds.run()
            await turns._commit()
            assert turns.producer.events == ["out", "flush", "app-n-changelog", "flush", "commit"]

        asyncio.run(scenario())

    def test_what_has_not_changed_is_not_committed_again(self) -> None:
        async def scenario() -> None:
            turns = Turns(passing())
            await turns.assign(IN)
            turns.receive("in", 1, 2)
            await turns._rounds.run()
            for _ in range(3):
                await turns._commit()
            assert turns.producer.events.count("commit") == 1

        asyncio.run(scenario())

    def test_tasks_have_a_round_beside_a_commit_that_covers_none_of_it(self) -> None:
        """The outputs of the round are sent behind the commit, its offsets belong to the next."""

        async def scenario() -> None:
            turns = Turns(passing())
            await turns.assign(IN)
            turns.receive("in", 1, 2)
            await turns._rounds.run()
            turns.receive("in", 3, first=2)
            turns.consumer.positions[IN] = 3
            turns.producer.events.clear()
            commit = turns.consumer.commit

            async def slow_commit(offsets: Any) -> None:
                for _ in range(10):
                    await asyncio.sleep(0)
                assert not turns._rounds.has_records, "the round was beside the commit"
                await commit(offsets)

            turns.consumer.commit = slow_commit
            done = await turns._commit(goes_on=True)
            assert done == (True, 1)
            assert turns.consumer.offsets[IN].offset == 2
            assert turns.producer.events == ["flush", "flush", "commit", "out"]
            await turns._commit()
            assert turns.consumer.offsets[IN].offset == 3
            assert turns.progress.records == 1

        asyncio.run(scenario())

    def test_a_commit_ends_before_a_failure_of_the_round_beside_it_is_raised(self) -> None:
        async def scenario() -> None:
            app = Streams("app")
            divisors = iter([1, 1, 0])
            app.stream("in").filter(lambda _: 1 // next(divisors) > 0).to("out")
            turns = Turns(app)
            await turns.assign(IN)
            turns.receive("in", 1, 2)
            await turns._rounds.run()
            turns.receive("in", 3, first=2)
            with pytest.raises(ProcessingError):
                await turns._commit(goes_on=True)
            assert turns.consumer.offsets[IN].offset == 2

        asyncio.run(scenario())

    def test_where_nothing_waits_the_consumers_position_is_committed(self) -> None:
        """Behind the last record there may be markers of transactions."""

        async def scenario() -> None:
            turns = Turns(passing())
            await turns.assign(IN)
            turns.receive("in", 1, 2)
            await turns._rounds.run()
            turns.consumer.positions[IN] = 3
            await turns._commit()
            assert turns.consumer.offsets[IN].offset == 3
            turns.receive("in", 3, 4, first=3)
            turns.consumer.positions[IN] = 5
            await turns._commit()
            assert turns.consumer.offsets[IN].offset == 2, "two records wait"
            await turns._rounds.run()
            await turns._commit()
            assert turns.consumer.offsets[IN].offset == 5

        asyncio.run(scenario())
