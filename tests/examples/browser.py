"""A page in a headless Chromium, over its DevTools protocol.                               [IO]"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS_MAX = 60


def installed() -> str | None:
    """The browser's program, if this machine has one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """An open page."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._calls = 0

    async def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        self._calls += 1
        arguments = {"expression": script, "returnByValue": True}
        call = {"id": self._calls, "method": "Runtime.evaluate", "params": arguments}
        await self._socket.send_json(call)
        while (answer := await self._socket.receive_json()).get("id") != self._calls:
            pass  # events
        return answer["result"]["result"].get("value")

    async def until(self, script: str, is_wanted: Callable[[Any], bool]) -> Any:
        """The first value of the expression that is wanted, or the last one after a minute."""
        deadline = time.monotonic() + SECONDS_MAX
        while not is_wanted(value := await self.evaluate(script)):
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.1)
        return value


@contextmanager
def started(program: str, url: str, profile: Path) -> Iterator[str]:
    """A browser that opens `url`, until the end of the block; where it can be spoken to."""
    command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    command += ["--remote-debugging-port=0", f"--user-data-dir={profile}", url]
    port_file, deadline = profile / "DevToolsActivePort", time.monotonic() + SECONDS_MAX
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            while not port_file.exists() or not (lines := port_file.read_text().split()):
                assert process.poll() is None, "the browser has ended"
                assert time.monotonic() < deadline, "the browser does not start"
                time.sleep(0.1)
            yield f"http://127.0.0.1:{lines[0]}"
        finally:
            process.terminate()


@asynccontextmanager
async def page_of(address: str) -> AsyncIterator[Page]:
    """The page of a browser that has started."""
    async with aiohttp.ClientSession() as session:
        async with asyncio.timeout(SECONDS_MAX):
            while not (found := await _pages(session, address)):
                await asyncio.sleep(0.1)
        async with session.ws_connect(found[0]) as socket:
            yield Page(socket)


async def _pages(session: aiohttp.ClientSession, address: str) -> list[str]:
    """The sockets of its pages."""
    async with session.get(f"{address}/json") as answer:
        targets = await answer.json()
    return [each["webSocketDebuggerUrl"] for each in targets if each["type"] == "page"]
