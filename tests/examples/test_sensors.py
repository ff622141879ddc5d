"""Sensors: silence by the wall clock of the driver, and means against plain Python."""

from __future__ import annotations

import json as plain
from collections import defaultdict
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from kafkalite.clients import Columns, NewTopic
from kafkalite.clients.sync import Admin, Producer
from kafkalite.embedded import EmbeddedBroker
from kafkalite.serde import json, string, windowed
from kafkalite.streams import Record, TopologyTestDriver, Windowed

START, MINUTE = 1_767_571_200_000, 60_000
SENSORS, SECONDS = 6, 200


def test_a_silent_sensor_is_noticed_once(example: Callable[..., ModuleType]) -> None:
    with TopologyTestDriver(example("sensors", "app").app, wall_clock=START) as driver:

        def read(sensor: str, at: int) -> None:
            driver.pipe("readings", {"celsius": 20.0, "at": at}, key=sensor)

        def statuses() -> list[tuple[str, str]]:
            return [(r.key, r.value["status"]) for r in driver.read("sensor-status")]

        read("cellar", START)
        read("roof", START)
        driver.advance_wall_clock("20s")
        read("roof", START + 20_000)
        assert statuses() == []
        driver.advance_wall_clock("15s")
        assert statuses() == [("cellar", "silent")]
        driver.advance_wall_clock("10s")
        assert statuses() == []
        read("cellar", START + 45_000)
        assert statuses() == [("cellar", "back")]
        driver.advance_wall_clock("10m")
        assert sorted(statuses()) == [("cellar", "silent"), ("roof", "silent")]


def test_the_last_minute_is_over_when_nobody_sends(example: Callable[..., ModuleType]) -> None:
    with TopologyTestDriver(example("sensors", "app").app, wall_clock=START) as driver:
        for second, celsius in ((1, 20.0), (2, 23.0)):
            reading = {"celsius": celsius, "at": START + second * 1000}
            driver.pipe("readings", reading, key="roof")
        driver.advance_wall_clock("15s")
        assert driver.read("temperatures") == []
        driver.advance_wall_clock("15s")
        (minute,) = driver.read("temperatures")
    assert minute.key == Windowed("roof", START, START + MINUTE)
    assert minute.value == {"readings": 2, "mean": 21.5, "highest": 23.0}


def test_minutes_of_readings(
    example: Callable[..., ModuleType],
    broker: EmbeddedBroker,
    run: Callable[..., dict[str, Any]],
    records: Callable[..., list[Record]],
) -> None:
    made = example("sensors", "load")
    rows = [row for n in range(SECONDS) for row in made.readings(SENSORS, n, START + n * 1000)]
    with Admin(broker.bootstrap_servers) as admin, Producer(broker.bootstrap_servers) as producer:
        kept = {"retention.ms": "-1"}
        admin.create_topics([NewTopic("readings", 1, configs=kept)])
        keys, values = zip(*rows, strict=True)
        texts = [plain.dumps(value).encode() for value in values]
        times = [value["at"] for value in values]
        producer.send_columns("readings", Columns([key.encode() for key in keys], texts, times))
    run("sensors")
    minutes = defaultdict(list)
    for key, value in rows:
        minutes[key, value["at"] // MINUTE * MINUTE].append(value["celsius"])
    found = {r.key: r.value for r in records("temperatures", windowed(string(), "1m"), json())}
    assert len(found) == 3 * SENSORS  # the fourth minute is open
    for (key, start, _), value in ((tuple(window), value) for window, value in found.items()):
        expected = minutes[key, start]
        assert value["readings"] == len(expected)
        assert value["mean"] == pytest.approx(sum(expected) / len(expected))
        assert value["highest"] == max(expected)
