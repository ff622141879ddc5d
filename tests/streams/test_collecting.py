"""A process that is a worker's looks for cycles seldom, and is as before afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from kafkalite.clients.admin.client import NewTopic
from kafkalite.clients.sync import Admin, Producer
from kafkalite.core.types import Columns
from kafkalite.streams import Streams, json, string
from kafkalite.streams.collecting import YOUNG_OBJECTS, collecting_seldom

SOURCE, TARGET = "collecting-in", "collecting-out"
RECORDS = 20_000


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.enable()


def test_a_run_collects_a_few_times_where_it_makes_thousands_of_dicts(
    bootstrap: str,
) -> None:
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(SOURCE, 1), NewTopic(TARGET, 1)])
    with Producer(bootstrap) as producer:
        values = [b'{"n":%d,"more":{"n":[1]}}' % n for n in range(RECORDS)]
        producer.send_columns(SOURCE, Columns([b"k"] * RECORDS, values, range(RECORDS)))
    app = Streams("collecting", key=string())
    app.stream(SOURCE, value=json()).map(lambda v: {**v, "kept": True}).filter(
        lambda v: v["n"] < 0
    ).to(TARGET, value=json())
    collected: list[str] = []
    note = lambda phase, info: collected.append(phase)  # noqa: E731
    gc.callbacks.append(note)
    try:
        assert app.run(bootstrap, until_caught_up=True).records == RECORDS
    finally:
        gc.callbacks.remove(note)
    assert len(collected) <= 10 * 2  # a begin and an end each; by default 112 times
    assert gc.get_threshold()[0] < YOUNG_OBJECTS
    assert gc.get_freeze_count() == 0


def test_whoever_collects_as_seldom_or_never_is_left_alone() -> None:
    gc.disable()
    with collecting_seldom():
        assert not gc.isenabled()
        assert gc.get_freeze_count() == 0
    gc.enable()
    gc.set_threshold(YOUNG_OBJECTS + 1, 5, 5)
    with collecting_seldom():
        assert gc.get_threshold() == (YOUNG_OBJECTS + 1, 5, 5)


def test_an_error_leaves_no_settings_behind() -> None:
    gc.set_threshold(700, 10, 10)
    with pytest.raises(KeyError), collecting_seldom():
        assert gc.get_threshold() == (YOUNG_OBJECTS, 10, 10)
        raise KeyError
    assert gc.get_threshold() == (700, 10, 10)
