"""`kafkalite-spark` tells a user in one line what is wrong, before a JVM starts.

Loads themselves have their tests in tests/spark and tests/examples.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--key", "other=string"], "--key other=string: give TOPIC=FORMAT for a topic to load"),
        (["--value", "x="], "--value x=: give TOPIC=FORMAT for a topic to load"),
        (["--query", "/no/such.sql"], "/no/such.sql: No such file or directory"),
    ],
)
def test_what_makes_no_sense_is_named(
    refused: Run, kafkalite_spark: Run, arguments: list[str], complaint: str
) -> None:
    assert refused("load", "x", *arguments, program=kafkalite_spark) == complaint


def test_a_topic_that_is_not_there_is_named(
    refused: Run, kafkalite_spark: Run, topic: str, tmp_path: Path
) -> None:
    warehouse = tmp_path / "warehouse"
    load = ("load", topic, "--warehouse", str(warehouse))
    assert topic in refused(*load, program=kafkalite_spark)
    assert not warehouse.exists()
