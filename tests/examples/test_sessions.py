"""Sessions of a web log: exact visits from the driver, and a day of lines against plain Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime
from types import ModuleType
from typing import Any

import pytest

from kafkalite.serde import json, string, windowed
from kafkalite.streams import Record, TopologyTestDriver, Windowed

GAP_MS = 1_800_000
START = datetime.fromisoformat("2026-01-05T10:00:00+00:00")


def line(minute: int, path: str, host: str = "h", status: int = 200, agent: str = "Mozilla") -> str:
    time = f"05/Jan/2026:{10 + minute // 60}:{minute % 60:02}:00 +0000"
    return f'{host} - - [{time}] "GET {path} HTTP/1.1" {status} 100 "-" "{agent}"'


def minutes(at: int) -> float:
    return (at - START.timestamp() * 1000) / 60_000


def test_visits_end_after_half_an_hour(example: Callable[..., ModuleType]) -> None:
    with TopologyTestDriver(example("sessions", "app").app) as driver:
        for text in (
            line(0, "/"), line(1, "/style.css", status=404), line(2, "/", agent="Teabot/1.2"),
            line(20, "/tea"), line(60, "/blog", host="other"), line(199, "/"), line(30, "/late"),
            "no line",
        ):  # fmt: skip
            driver.pipe("web-log", text, timestamp=0)
        visits = [
            (r.key.key, minutes(r.key.start), minutes(r.key.end), r.value)
            for r in driver.read("visits")
        ]
        landing = {record.key: record.value for record in driver.read("landing-pages")}
        (late,) = driver.read("web-log-late")
        (letter,) = driver.read("web-log-unreadable")
    assert visits == [
        ("h", 0, 20, {"pages": 2, "entry": "/", "exit": "/tea", "bytes": 200}),
        ("other", 60, 60, {"pages": 1, "entry": "/blog", "exit": "/blog", "bytes": 100}),
    ]
    assert landing == {
        "/": {"visits": 1, "bounces": 0.0, "pages": 2.0},
        "/blog": {"visits": 1, "bounces": 1.0, "pages": 1.0},
    }
    assert late.value["path"] == "/late"
    assert letter.value == b"no line"


Visits = dict[tuple[str, int, int], tuple[int, int]]  # host, start, end -> pages, bytes


def visits_of(requests: Iterable[tuple[str, int, int]]) -> Visits:
    """The visits of requests: of a host, a time and a number of bytes each."""
    by_host = defaultdict(list)
    for host, at, size in requests:
        by_host[host].append((at, size))
    visits: Visits = {}
    for host, rows in by_host.items():
        rows.sort()
        start = 0
        for n in range(1, len(rows) + 1):
            if n == len(rows) or rows[n][0] - rows[n - 1][0] > GAP_MS:
                sizes = [size for _, size in rows[start:n]]
                visits[host, rows[start][0], rows[n - 1][0]] = (n - start, sum(sizes))
                start = n
    return visits


def test_a_day_of_lines(
    example: Callable[..., ModuleType],
    load: Callable[..., str],
    run: Callable[..., dict[str, Any]],
    records: Callable[..., list[Record]],
) -> None:
    app, lines = example("sessions", "app"), example("sessions", "load").log(2_000)
    load("sessions", "--visits", "2000")
    run("sessions")
    read, unreadable = [], 0
    for text in lines:
        try:
            request = app.parse(text)
        except ValueError:
            unreadable += 1
            continue
        if request["status"] == 200 and "bot" not in request["agent"]:
            read.append((request["host"], app.time_of(text), request["bytes"]))
    late = records("web-log-late", string(), json())
    for record in late:
        read.remove((record.key, record.timestamp, record.value["bytes"]))
    expected = visits_of(read)

    visits = records("visits", windowed(string()), json())
    found = {
        (r.key.key, r.key.start, r.key.end): (r.value["pages"], r.value["bytes"]) for r in visits
    }
    assert len(found) == len(visits), "a visit ended twice"
    assert found.items() <= expected.items()
    assert len(found) > 0.9 * len(expected)  # the others have not ended at the end of the log
    assert isinstance(visits[0].key, Windowed)
    assert 0 < len(late) < 0.01 * len(lines)
    assert len(records("web-log-unreadable")) == unreadable > 0
    pages = {r.key: r.value for r in records("landing-pages", string(), json())}
    assert sum(page["visits"] for page in pages.values()) == len(visits)
    assert pages["/"]["bounces"] == pytest.approx(
        sum(r.value["pages"] == 1 for r in visits if r.value["entry"] == "/") / pages["/"]["visits"]
    )
