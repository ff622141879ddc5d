"""Enrichment: a service with bad moments is asked again, and what it never answers is a letter."""

from __future__ import annotations

import json as plain
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from kafkalite.serde import json, string
from kafkalite.streams import Record, TopologyTestDriver

ORDERS = 300


def test_an_order_gets_its_town(
    example: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, app = example("enrichment", "service"), example("enrichment", "app").app
    with service.running() as address, TopologyTestDriver(app) as driver:
        monkeypatch.setenv("TOWNS", address)
        for number, code in enumerate(["8010", "0000", "6666"]):
            driver.pipe("orders", {"number": number, "postal_code": code, "at": 0}, key="ann")
        graz, nowhere = driver.read("orders-with-town")
        (letter,) = driver.read("order-towns-dead")
    assert (graz.value["town"], graz.value["state"]) == ("Graz", "Styria")
    assert nowhere.value["town"] is None
    assert plain.loads(letter.value)["number"] == 2
    assert dict(letter.headers)["__streams.errors.exception"] == b"ClientResponseError"


def test_each_order_comes_once_or_is_a_letter(
    example: Callable[..., ModuleType],
    load: Callable[..., str],
    run: Callable[..., dict[str, Any]],
    records: Callable[..., list[Record]],
) -> None:
    load("enrichment", "--orders", str(ORDERS))
    with example("enrichment", "service").running() as address:
        run("enrichment", TOWNS=address)
    with_town = records("orders-with-town", string(), json())
    letters = records("order-towns-dead", string(), json())
    numbers = [record.value["number"] for record in with_town + letters]
    assert sorted(numbers) == list(range(ORDERS))
    assert {letter.value["postal_code"] for letter in letters} == {"6666"}
    nowhere = [r.value["number"] for r in with_town if r.value["town"] is None]
    assert sorted(nowhere) == [99, 199, 299]
