"""What tests of the server share: both event loops under which a broker may run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import uvloop


@pytest.fixture(params=["asyncio", "uvloop"])
def each_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """The test runs twice: `asyncio.run` makes a loop of this kind."""
    before = asyncio.get_event_loop_policy()
    if request.param == "uvloop":
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    yield
    asyncio.set_event_loop_policy(before)
