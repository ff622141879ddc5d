"""Click-through: exact pairs from the driver, and a day of impressions against plain Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from kafkalite.serde import json, string, windowed
from kafkalite.streams import Record, TopologyTestDriver, Windowed

MINUTE, HOUR = 60_000, 3_600_000
IMPRESSIONS = 6_000


def test_late_clicks_are_strays(example: Callable[..., ModuleType]) -> None:
    with TopologyTestDriver(example("clicks", "app").app) as driver:

        def show(name: str, minute: int) -> None:
            driver.pipe("impressions", {"campaign": "tea", "at": minute * MINUTE}, key=name)

        def click(name: str, minute: int) -> None:
            driver.pipe("clicks", {"impression": name, "at": minute * MINUTE}, key=name)

        show("a", 0)
        show("b", 1)
        show("c", 2)
        click("a", 3)
        click("unknown", 4)
        show("much later", 50)
        click("b", 5)  # it counts as of minute 5, but its impression is gone
        show("the next day", 24 * 60)
        click("the next day", 24 * 60)
        strays = [(record.key, record.timestamp) for record in driver.read("stray-clicks")]
        rates = {r.key: r.value for r in driver.read("click-through")}
    assert strays == [("unknown", 4 * MINUTE), ("b", 5 * MINUTE)]
    assert rates == {Windowed("tea", 0, HOUR): {"shown": 4, "rate": 0.25}}


def test_a_day_of_impressions(
    example: Callable[..., ModuleType],
    load: Callable[..., str],
    run: Callable[..., dict[str, Any]],
    records: Callable[..., list[Record]],
) -> None:
    day = example("clicks", "load").day(IMPRESSIONS)
    load("clicks", "--impressions", str(IMPRESSIONS))
    run("clicks")
    strays = {record.key for record in records("stray-clicks", string(), json())}
    clicks = {key: (value["at"], arrival) for key, value, arrival in day["clicks"]}
    punctual = {key for key, (at, arrival) in clicks.items() if at == arrival}
    assert {key for key in strays & punctual if key.startswith("i-")} == set()
    assert any(key.startswith("x-") for key in strays)
    assert any(key.startswith("i-") for key in strays)

    clicked = defaultdict(list)  # by campaign and hour: of each impression, whether it was clicked
    for key, value, at in day["impressions"]:
        is_clicked = key in clicks and key not in strays
        at = clicks[key][0] if is_clicked else at
        clicked[value["campaign"], at // HOUR * HOUR].append(is_clicked)
    rates = records("click-through", windowed(string(), "1h"), json())
    assert len(rates) >= 3 * 20  # the last hours are open
    for rate in rates:
        expected = clicked[rate.key.key, rate.key.start]
        assert rate.value["shown"] == len(expected), rate
        assert rate.value["rate"] == pytest.approx(sum(expected) / len(expected)), rate
