"""A simulated world: time passes when nobody works; hosts are paused and killed."""

from __future__ import annotations

import asyncio
import time

import pytest

from kafkalite.testing.simulation import MONOTONIC_START_S, Stuck, World


def test_an_hour_passes_at_once() -> None:
    began = time.monotonic()
    with World() as world:
        host = world.host("one")

        async def sleep() -> float:
            await asyncio.sleep(3_600)
            return asyncio.get_running_loop().time() - MONOTONIC_START_S

        assert world.result(host, sleep(), 4_000) == pytest.approx(3_600, abs=0.001)
        assert world.time.time_ns() - world.time.monotonic_ns() > 10**18
    assert time.monotonic() - began < 60


def test_timers_of_all_hosts_go_off_in_order() -> None:
    with World() as world:
        heard: list[tuple[str, float]] = []

        async def beat(name: str, every: float) -> None:
            while True:
                await asyncio.sleep(every)
                heard.append((name, world.seconds))

        world.host("a").spawn(beat("a", 2))
        world.host("b").spawn(beat("b", 3))
        world.pass_seconds(6.5)
        names, times = zip(*heard, strict=True)
        assert "".join(names) in ("abaab", "ababa")  # two go off at six
        assert times == pytest.approx([2, 3, 4, 6, 6], abs=0.001)


def test_a_paused_host_does_nothing_until_it_goes_on() -> None:
    with World() as world:
        host = world.host("one")
        beats: list[float] = []

        async def beat() -> None:
            while True:
                await asyncio.sleep(1)
                beats.append(world.seconds)

        host.spawn(beat())
        world.pass_seconds(0.5)
        host.pause()
        world.pass_seconds(10)
        assert not beats
        host.go_on()
        world.pass_seconds(2.2)
        assert beats == pytest.approx([10.5, 11.5, 12.5], abs=0.001)


def test_work_for_threads_is_done_where_it_is_handed_in() -> None:
    with World() as world:

        async def work() -> list[object]:
            loop = asyncio.get_running_loop()
            done = [loop.run_in_executor(None, len, "abc"), asyncio.to_thread(len, 3)]  # type: ignore[arg-type]
            return list(await asyncio.gather(*done, return_exceptions=True))

        length, error = world.result(world.host("one"), work())
        assert length == 3
        assert isinstance(error, TypeError)


def test_what_never_comes_is_said() -> None:
    with World() as world:
        world.host("one")
        with pytest.raises(Stuck, match="no host has a timer"):
            world.run(lambda: False, 1)
        world.host("two").spawn(asyncio.sleep(100))
        with pytest.raises(Stuck, match="not so after 100"):
            world.run(lambda: False, 10)


def test_the_wall_clock_can_be_set_and_no_other_follows() -> None:
    with World() as world:
        ahead = world.time.time_ns() - world.time.monotonic_ns()
        world.time.set_wall_clock(-3_600)
        assert world.time.time_ns() - world.time.monotonic_ns() == ahead - 3_600 * 10**9
        world.pass_seconds(10)
        assert world.time.time_ns() - world.time.monotonic_ns() == ahead - 3_600 * 10**9
        assert world.time.monotonic() == pytest.approx(MONOTONIC_START_S + 10, abs=0.001)
