"""Work in slices: one in a turn of the loop, whatever else goes on in slices too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from kafkalite.core.broker.agenda import Agenda


def test_a_turn_runs_one_slice_of_all_that_goes_on() -> None:
    async def main() -> None:
        agenda, done = Agenda(lambda: 0), []

        def work(name: str) -> Iterator[None]:
            for number in range(3):
                done.append(f"{name}{number}")
                yield

        for name in "abc":
            agenda.run_slices(work(name), name, lambda name=name: done.append(f"{name}."))
        assert done == ["a0", "b0", "c0"]  # the first runs at once
        turns = []
        while len(done) < 12:
            before = len(done)
            await asyncio.sleep(0)
            turns.append(done[before:])
        expected = ["a1", "b1", "c1", "a2", "b2", "c2", "a.", "b.", "c."]
        assert [turn for turn in turns if turn] == [[each] for each in expected]

    asyncio.run(main())


def test_what_fails_or_waits_for_a_future_keeps_no_others_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        agenda, done = Agenda(lambda: 0), []
        future = asyncio.get_running_loop().create_future()

        def waits() -> Iterator[asyncio.Future[None]]:
            yield future

        def fails() -> Iterator[None]:
            yield
            raise ValueError("a fault of ours")

        def goes_on() -> Iterator[None]:
            yield
            yield

        agenda.run_slices(waits(), "waits", lambda: done.append("waits"))
        agenda.run_slices(fails(), "fails", lambda: done.append("fails"))
        agenda.run_slices(goes_on(), "goes on", lambda: done.append("goes on"))
        for _ in range(8):
            await asyncio.sleep(0)
        assert done == ["fails", "goes on"]
        future.set_result(None)
        for _ in range(3):
            await asyncio.sleep(0)
        assert done == ["fails", "goes on", "waits"]

    asyncio.run(main())
    assert "fails failed" in caplog.text
