"""Card fraud: the alerts are those that the loader planted, and no others."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from kafkalite.serde import json, string
from kafkalite.streams import Record, TopologyTestDriver

CARDS = 300


def planted(cards: int) -> list[tuple[str, str]]:
    tried = [(f"card-{n}", "tried out") for n in range(7, cards, 100)]
    return sorted(tried + [(f"card-{n}", "in two places") for n in range(28, cards, 100)])


def found(alerts: list[Record]) -> list[tuple[str, str]]:
    return sorted((alert.key, alert.value["reason"]) for alert in alerts)


def test_the_driver_finds_what_was_planted(example: Callable[..., ModuleType]) -> None:
    made = example("fraud", "load")
    with TopologyTestDriver(example("fraud", "app").app) as driver:
        rows = {"cards": made.cards(100), "merchants": made.merchants()}
        for topic, records in (rows | {"payments": made.payments(100)}).items():
            for key, value, at in records:
                driver.pipe(topic, value, key=key, timestamp=at)
        alerts = driver.read("alerts")
    assert found(alerts) == planted(100)
    tried_out = next(alert for alert in alerts if alert.value["reason"] == "tried out")
    assert tried_out.value == {"reason": "tried out", "owner": "Hugo", "amount": 890.0}


def test_a_day_of_payments(
    load: Callable[..., str],
    run: Callable[..., dict[str, Any]],
    records: Callable[..., list[Record]],
) -> None:
    load("fraud", "--cards", str(CARDS))
    run("fraud")
    assert found(records("alerts", string(), json())) == planted(CARDS)
