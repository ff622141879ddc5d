"""Which known name a misspelt one probably means."""

from __future__ import annotations

import pytest

from kafkalite.core.nearest import did_you_mean, nearest

TOPICS = ["orders", "payments", "Invoices", "a"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("order", "orders"),
        ("ordrs", "orders"),
        ("ORDERS", "orders"),
        ("invoice", "Invoices"),
        ("shipments", "payments"),
        ("b", None),
        ("", None),
        ("customers", None),
    ],
)
def test_the_nearest_name(name: str, meant: str | None) -> None:
    assert nearest(name, TOPICS) == meant


def test_the_end_of_a_message() -> None:
    assert did_you_mean("order", TOPICS) == "; did you mean 'orders'?"
    assert did_you_mean("x", TOPICS) == ""


def test_very_many_names_are_not_all_compared() -> None:
    looked_at = 0

    def names() -> object:
        nonlocal looked_at
        for number in range(1_000_000):
            looked_at += 1
            yield f"{number:x}"

    assert nearest("orders", names()) is None  # type: ignore[arg-type]
    assert looked_at <= 10_001
