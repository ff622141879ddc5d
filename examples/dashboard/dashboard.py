"""A page with the ten pages that were seen most, which changes as they do.

    python examples/dashboard/dashboard.py [-b HOST:PORT] [--port 8000]

The topology runs in this process. The browser gets server-sent events with rows of its store.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from app import app as topology
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, StreamingResponse
from starlette.routing import Route

from kafkalite.streams import StoreUnavailable

PAGE = Path(__file__).with_name("index.html")
LOOK_SECONDS = 0.5


async def latest() -> dict[str, Any] | None:
    """The newest window and its top ten; None while there is none to be had."""
    try:
        windows = await topology.async_store("top").all()
    except StoreUnavailable:  # its task has just begun, or moves
        return None
    if not windows:
        return None
    window, top = windows[-1]
    rows = [{"page": page, "views": views} for views, page in top]
    return {"start": window.start, "end": window.end, "rows": rows}


async def changes() -> AsyncIterator[str]:
    """The top ten as server-sent events: at once, and whenever they have changed."""
    sent = None
    while True:
        if (now := await latest()) != sent:
            sent = now
            yield f"data: {json.dumps(now)}\n\n"
        await asyncio.sleep(LOOK_SECONDS)


async def index(request: Request) -> FileResponse:
    return FileResponse(PAGE)


async def events(request: Request) -> StreamingResponse:
    return StreamingResponse(changes(), media_type="text/event-stream")


def site(servers: str) -> Starlette:
    """The web server's application. The topology runs as long as it does."""

    @asynccontextmanager
    async def running(_: Starlette) -> AsyncIterator[None]:
        async with topology.running(servers):
            yield

    return Starlette(routes=[Route("/", index), Route("/events", events)], lifespan=running)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-b", "--bootstrap-servers", default="127.0.0.1:9092")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    print(f"the dashboard is at http://127.0.0.1:{given.port}")
    uvicorn.run(
        site(given.bootstrap_servers),
        port=given.port,
        log_level="warning",
        timeout_graceful_shutdown=1,  # browsers keep their streams of events open
    )
