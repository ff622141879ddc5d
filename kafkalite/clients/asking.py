"""A question that any of several brokers may answer, whoever of them is silent.             [IO]

    ask the first ──silence for PATIENCE_MS──> ask the next, too ──> the first answer counts
        └──failure──> ask the next at once

A broker that is paused, or cut off without a reset, takes requests and answers none. A connection
to it looks like any other, so it is time that tells.

Owns   the attempts under way: all end with the first answer.
Fails  with the last attempt's error once no other attempt can be made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from kafkalite.errors import BrokerUnavailable

R = TypeVar("R")

PATIENCE_MS: Final = 1_000
CONNECTED_LOOK_MS: Final = 500  # how soon to look whether a silent coordinator is still one
UNCONNECTED_LOOK_MS: Final = 100  # the same of one that is not connected: most often it is dead
LOOK_MAX_MS: Final = 5_000  # between two looks: joins may wait for minutes


class CoordinatorMoved(BrokerUnavailable):
    """Another broker coordinates now, while this one has not answered."""


async def first_answer(attempt: Callable[[], Coroutine[Any, Any, R] | None]) -> R:
    """The first answer of the attempts that `attempt` makes, one after the other; None from it: no
    more can be made."""
    running: list[asyncio.Task[R]] = []
    error = BrokerUnavailable("there is no broker to ask")
    try:
        while True:
            if (asking := attempt()) is not None:
                running.append(asyncio.ensure_future(asking))
            if not running:
                raise error
            await asyncio.wait(
                running, timeout=PATIENCE_MS / 1000, return_when=asyncio.FIRST_COMPLETED
            )
            for task in [task for task in running if task.done()]:
                running.remove(task)
                try:
                    return task.result()
                except BrokerUnavailable as failure:
                    error = failure
    finally:
        for task in running:
            task.cancel()


async def unless_moved(
    asking: asyncio.Future[R], has_moved: Callable[[], Awaitable[bool]], look_ms: int
) -> R:
    """The answer of a coordinator. CoordinatorMoved once another has taken its place: `has_moved`
    is asked after `look_ms`, and again after pauses that grow."""
    looking: asyncio.Future[bool] | None = None
    try:
        while True:
            await asyncio.wait((asking,), timeout=look_ms / 1000)
            if not asking.done():
                looking = asyncio.ensure_future(has_moved())
                await asyncio.wait((asking, looking), return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            assert looking is not None, "a look has ended"
            if looking.result():
                raise CoordinatorMoved("another broker has become the coordinator")
            look_ms = min(2 * look_ms, LOOK_MAX_MS)
    finally:
        asking.cancel()
        if looking is not None:
            looking.cancel()
