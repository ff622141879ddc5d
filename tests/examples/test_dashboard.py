"""The dashboard: exact tops from the driver, and the page and its events over HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest
from browser import installed, page_of, started

from kafkalite.clients import Columns, NewTopic
from kafkalite.clients.sync import Admin, Producer
from kafkalite.embedded import EmbeddedBroker
from kafkalite.streams import TopologyTestDriver, Windowed

DASHBOARD = Path(__file__).parents[2] / "examples" / "dashboard"
START, STEP_MS, WINDOW_MS = 1_767_571_200_000, 100, 5_000
SECONDS_MAX = 60
# Name and number of each bar, from the top of the page to its end.
BARS = """
[...document.querySelectorAll("#top li")]
    .sort((a, b) => parseFloat(a.style.top) - parseFloat(b.style.top))
    .map(item => [item.querySelector("b").textContent, item.querySelector("span").textContent])
"""


def views(example: Callable[..., ModuleType], seconds: int) -> list[tuple[str, int]]:
    """Pages and times, as the loader makes them."""
    random, made = Random(1), example("dashboard", "load")
    times = range(START, START + seconds * 1000, STEP_MS)
    return [(page, at) for at in times for page in made.views(20, at, random)]


def top(seen: list[tuple[str, int]], start: int) -> list[list[Any]]:
    """The ten pages that were seen most in a window, by counting."""
    counts = Counter(page for page, at in seen if start <= at < start + WINDOW_MS)
    return sorted(([count, page] for page, count in counts.items()), reverse=True)[:10]


def test_the_store_has_the_top_ten_of_each_window(example: Callable[..., ModuleType]) -> None:
    seen = views(example, 11)
    with TopologyTestDriver(example("dashboard", "app").app) as driver:
        for page, at in seen:
            driver.pipe("views", {"page": page, "at": at})
        rows = list(driver.store("top").all())
    assert rows == [(Windowed("all pages", START, START + WINDOW_MS), top(seen, START))]


@pytest.fixture(scope="module")
def address(
    example: Callable[..., ModuleType], broker: EmbeddedBroker
) -> Iterator[tuple[str, int]]:
    """The dashboard's address, once it listens; eleven seconds of views are there."""
    rows = views(example, 11)
    with Admin(broker.bootstrap_servers) as admin, Producer(broker.bootstrap_servers) as producer:
        admin.create_topics([NewTopic("views", 4)])
        values = [json.dumps({"page": page, "at": at}).encode() for page, at in rows]
        times = [at for _, at in rows]
        producer.send_columns("views", Columns([None] * len(rows), values, times))
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    command = [sys.executable, str(DASHBOARD / "dashboard.py"), "--port", str(port)]
    with subprocess.Popen([*command, "-b", broker.bootstrap_servers]) as process:
        wait_for(port, process)
        yield "127.0.0.1", port
        process.terminate()


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while process.poll() is None and time.monotonic() < deadline:
        with closing(socket.socket()) as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    pytest.fail(f"the dashboard did not start: {process.poll()}")


def events(address: tuple[str, int]) -> Iterator[Any]:
    """The server-sent events, decoded."""
    with closing(http.client.HTTPConnection(*address, timeout=SECONDS_MAX)) as connection:
        connection.request("GET", "/events")
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        while line := answer.readline():
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))


def last_window(example: Callable[..., ModuleType]) -> dict[str, Any]:
    """The top of the last second: `final(idle=)` closes its window when no view follows."""
    start = START + 2 * WINDOW_MS
    rows = [{"page": page, "views": count} for count, page in top(views(example, 11), start)]
    return {"start": start, "end": start + WINDOW_MS, "rows": rows}


def test_a_client_gets_the_page_and_its_events(
    example: Callable[..., ModuleType], address: tuple[str, int]
) -> None:
    with closing(http.client.HTTPConnection(*address, timeout=SECONDS_MAX)) as connection:
        connection.request("GET", "/")
        page = connection.getresponse().read().decode()
    assert re.findall(r'new EventSource\("(\w+)"\)', page) == ["events"]

    expected = last_window(example)
    assert any(event == expected for event in events(address))


@pytest.mark.skipif(installed() is None, reason="no Chromium on this machine")
def test_a_browser_draws_the_bars(
    example: Callable[..., ModuleType], address: tuple[str, int], tmp_path: Path
) -> None:
    expected = [[row["page"], str(row["views"])] for row in last_window(example)["rows"]]

    async def look(browser: str) -> Any:
        async with page_of(browser) as page:
            return await page.until(BARS, lambda bars: bars == expected)

    program = installed()
    assert program is not None
    url = f"http://{address[0]}:{address[1]}/"
    with started(program, url, tmp_path / "profile") as browser:
        assert asyncio.run(look(browser)) == expected
