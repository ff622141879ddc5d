"""How an application is to run: said to `Streams` or to `run`, and refused before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafkalite.errors import TopologyError
from kafkalite.streams import Streams, TopologyTestDriver, count, json, string, tumbling

REFUSED = [
    ({"workers": 0}, "workers: expected 1 or more"),
    ({"processing_guarantee": "twice"}, "processing_guarantee is one of"),
    ({"state_memory": "much"}, 'state_memory: expected bytes or text such as "64MB", got .much'),
    ({"state_memory": 0}, "state_memory: expected bytes"),
    ({"idle": "a while"}, "idle: expected a timedelta"),
    ({"num_standby_replicas": -1}, "num_standby_replicas: expected 0 or more, got -1"),
    ({"cache": "10MB"}, "cache= is not supported yet"),
    ({"commit_interval": "soon"}, "commit_interval: expected a timedelta"),
]


@pytest.mark.parametrize(("settings", "complaint"), REFUSED)
def test_what_cannot_be_had_is_refused_by_name(
    settings: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(TopologyError, match=complaint):
        Streams("app", **settings)
    data_dir = tmp_path / "data"
    with pytest.raises(TopologyError, match=complaint):
        Streams("app", data_dir=data_dir).run(**settings)
    assert not data_dir.exists()


def test_a_setting_that_there_is_not() -> None:
    with pytest.raises(TypeError, match="app: unexpected keyword argument 'threads'"):
        Streams("app", threads=3)  # type: ignore[call-arg]


@pytest.mark.slow
def test_settings_of_the_application_are_those_of_its_runs(tmp_path: Path) -> None:
    app = Streams(
        "app", workers=1, processing_guarantee="at_least_once", commit_interval=0, data_dir=tmp_path
    )
    app.stream("nowhere").to("out")
    assert app.commit_interval == 0
    with pytest.raises(TopologyError, match="topic 'nowhere' does not exist"):
        app.run(until_caught_up=True)
    assert any(tmp_path.iterdir())


@pytest.mark.slow
def test_a_topology_that_reads_nothing_does_not_run(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="idle: the topology reads no topic"):
        Streams("idle", data_dir=tmp_path).run(until_caught_up=True)


class TestWrongCalls:
    def test_a_driver_of_something_else(self) -> None:
        with pytest.raises(TopologyError, match="expected a Streams object, got int"):
            TopologyTestDriver(5)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("wrong", "complaint"),
        [
            ({"timestamp": 1.5}, "timestamp: expected epoch milliseconds, got 1.5"),
            ({"timestamp": 1 << 63}, "timestamp: expected epoch milliseconds"),
            ({"headers": [("a", "text")]}, r"headers: expected pairs \(str, bytes\)"),
            ({"headers": {"a": b"x"}}, r"headers: expected pairs \(str, bytes\), got 'a'"),
        ],
    )
    def test_a_record_that_cannot_be_harms_nothing(
        self, wrong: dict[str, Any], complaint: str
    ) -> None:
        app = Streams("app", key=string(), value=json())
        app.stream("in").to("out")
        driver = TopologyTestDriver(app)
        with pytest.raises(TopologyError, match=complaint):
            driver.pipe("in", 1, key="a", **wrong)
        driver.pipe("in", 2, key="a")
        assert [record.value for record in driver.read("out")] == [2]

    def test_an_aggregate_in_the_place_of_an_option(self) -> None:
        group = Streams("app").stream("in").group_by_key().window(tumbling("1s"))
        with pytest.raises(TopologyError, match="no field can be called 'name'"):
            group.aggregate(name=count())  # type: ignore[arg-type]
        with pytest.raises(TopologyError, match="did you forget to call it"):
            group.aggregate(n=count)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("of_the_application", "of_the_run", "idle_ms"),
    [(None, None, 5_000), ("30s", None, 30_000), ("30s", "100ms", 100), (None, 0, 0)],
)
def test_how_long_an_input_is_silent_before_it_is_idle(
    of_the_application: Any, of_the_run: Any, idle_ms: int
) -> None:
    app = Streams("app", idle=of_the_application)
    app.stream("in").to("out")
    with app._worker("127.0.0.1:1", {"idle": of_the_run}, until_caught_up=False) as worker:
        assert worker.config.idle_ms == idle_ms
