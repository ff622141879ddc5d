"""The page of a broker's metrics: its numbers, and the table that explains them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kafkalite.core.broker.metrics import OTHER_TOPICS, TOPICS_MAX, BrokerMetrics, Histogram
from kafkalite.core.broker.survey import Lags, Survey
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ErrorCode
from kafkalite.monitoring.exposition import BrokerPage
from kafkalite.serde.registry_metrics import RegistryMetrics

TABLE = Path(__file__).parent.parent.parent / "docs" / "operations.md"
ROW = re.compile(r"\| `(\w+)` \| (\w+) \| ([^|]*)\| [^|]+ \|")
GAUGES = {
    "partitions": 9,
    "offline_partitions": 0,
    "is_controller": 1,
    "waiting_requests": 1,
    "fetch_sessions": 2,
    "fetch_session_partitions": 3,
    "cleaner_running": 0,
    "cleaner_max_dirty_percent": 50,
    "cleaner_uncleanable_partitions": 0,
}
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def counters() -> BrokerMetrics:
    broker = BrokerMetrics(connections_accepted=3, loop_lag=Histogram())
    produce = broker.of(ApiKey.PRODUCE)
    produce.requests = 5
    produce.errors[ErrorCode.NOT_LEADER_OR_FOLLOWER] += 2
    for seconds in (0.0002, 0.0002, 0.3):
        produce.latency.observe(seconds)
    broker.appended("t", 7, 700)
    broker.fetched("t", 300)
    return broker


def page(broker: BrokerMetrics, survey: Survey | None = None) -> str:
    return BrokerPage(broker, GAUGES, survey or Survey()).text().decode()


def samples(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_counters_are_on_the_page() -> None:
    broker = counters()
    assert broker.loop_lag is not None
    broker.loop_lag.observe(0.2)
    found = samples(page(broker))
    assert found["kafkalite_loop_lag_seconds_bucket", (("le", "0.1"),)] == 0
    assert found["kafkalite_loop_lag_seconds_bucket", (("le", "0.25"),)] == 1
    assert found["kafkalite_loop_lag_seconds_sum", ()] == 0.2
    api = ("api", "PRODUCE")
    assert found["kafkalite_partitions", ()] == 9
    assert found["kafkalite_connections_total", (("outcome", "accepted"),)] == 3
    assert found["kafkalite_records_in_total", ()] == 7
    assert found["kafkalite_requests_total", (api,)] == 5
    assert found["kafkalite_errors_total", (api, ("error", "NOT_LEADER_OR_FOLLOWER"))] == 2
    assert found["kafkalite_request_seconds_bucket", (api, ("le", "0.00025"))] == 2
    assert found["kafkalite_request_seconds_bucket", (api, ("le", "0.5"))] == 3
    assert found["kafkalite_request_seconds_count", (api,)] == 3
    assert found["kafkalite_request_seconds_sum", (api,)] == pytest.approx(0.3004)
    topic = (("topic", "t"),)
    assert found["kafkalite_topic_records_in_total", topic] == 7
    assert found["kafkalite_topic_bytes_in_total", topic] == 700
    assert found["kafkalite_topic_bytes_out_total", topic] == 300


def test_a_loop_whose_lag_is_not_measured_has_no_histogram() -> None:
    assert "loop_lag" not in page(BrokerMetrics())


def test_topics_and_lags_are_on_the_page_and_those_left_out_are_counted() -> None:
    group = 'a "b"\\ c\nd'
    survey = Survey({"t": 4_000}, 5, Lags([group], [TopicPartition("t", 3)], [70]), 6)
    found = samples(page(BrokerMetrics(), survey))
    assert found["kafkalite_topic_log_bytes", (("topic", "t"),)] == 4_000
    labels = (("group", group), ("partition", "3"), ("topic", "t"))
    assert found["kafkalite_group_lag_records", labels] == 70
    left_out = "kafkalite_series_left_out"
    assert found[left_out, (("metric", "kafkalite_topic_log_bytes"),)] == 5
    assert found[left_out, (("metric", "kafkalite_group_lag_records"),)] == 6


def test_a_name_that_is_no_unicode_does_not_spoil_the_page() -> None:
    survey = Survey(lags=Lags(["a\udcff"], [TopicPartition("t", 3)], [70]))
    assert r'group="a\udcff"' in page(BrokerMetrics(), survey)


def test_the_process_and_the_program_are_on_the_page() -> None:
    found = samples(page(BrokerMetrics()))
    (build,) = [dict(labels) for name, labels in found if name == "kafkalite_build_info"]
    assert build.keys() == {"version", "python", "codec"}
    for name in ("cpu_seconds_total", "resident_memory_bytes", "open_fds", "start_time_seconds"):
        assert found[f"process_{name}", ()] > 0


def test_topics_beyond_the_bound_are_counted_together() -> None:
    broker = BrokerMetrics()
    for number in range(TOPICS_MAX + 3):
        broker.appended(f"t{number}", 1, 10)
    assert len(broker.topics) == TOPICS_MAX + 1
    assert broker.topics[OTHER_TOPICS].records_in == 3
    assert broker.records_in == TOPICS_MAX + 3
    broker.forget_topic("t0")
    broker.forget_topic("t1")
    broker.appended("new", 1, 10)
    assert broker.topics["new"].records_in == 1


def test_the_table_in_the_docs_is_what_is_exposed() -> None:
    registry = RegistryMetrics(lambda: {"subjects": 4, "schemas": 5, "is_open": 1})
    registry.answered("/subjects", 200, 0.1)
    survey = Survey({"t": 4_000}, 0, Lags(["g"], [TopicPartition("t", 3)], [70]), 0)
    exposed = {}
    text = page(counters(), survey) + registry.page().decode()
    for family in text_string_to_metric_families(text):
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        name = f"{family.name}_total" if family.type == "counter" else family.name
        if not name.endswith("_created"):
            exposed[name] = (family.type, frozenset(labels))
    told = {}
    for name, kind, labels in ROW.findall(TABLE.read_text()):
        told[name] = (kind, frozenset(re.findall(r"`(\w+)`", labels)))
    assert told == exposed
