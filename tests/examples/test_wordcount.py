"""Word count: the driver's counts, and the Python language reference counted in one line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

from kafkalite.serde import int64, string
from kafkalite.streams import Record, TopologyTestDriver


def test_words_are_counted_in_small_letters(example: Callable[..., ModuleType]) -> None:
    with TopologyTestDriver(example("wordcount", "app").app) as driver:
        driver.pipe("lines", "To be, or not to be!")
        updates = [(record.key, record.value) for record in driver.read("word-counts")]
    assert updates == [("to", 1), ("be", 1), ("or", 1), ("not", 1), ("to", 2), ("be", 2)]


def test_the_language_reference(
    example: Callable[..., ModuleType],
    load: Callable[..., str],
    run: Callable[..., dict[str, Any]],
    records: Callable[..., list[Record]],
) -> None:
    lines = example("wordcount", "load").lines()
    assert load("wordcount") == f"{len(lines):,} lines\n"
    run("wordcount")
    words = Counter(re.sub("[^a-z]", " ", "\n".join(lines).lower()).split())
    counts = {record.key: record.value for record in records("word-counts", string(), int64())}
    assert counts == words
    assert counts["the"] > 1_000
