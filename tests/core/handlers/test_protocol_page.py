"""docs/protocol.md says what the broker does."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkalite.core.handlers import ROUTES
from kafkalite.core.handlers.protocol_page import render
from kafkalite.core.protocol.apis import API

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == render(), "run `make protocol-page`"


def test_the_page_names_every_api_and_field() -> None:
    page = render()
    for key in ROUTES:
        first, last = ROUTES[key].versions
        versions = f"v{first}" if first == last else f"v{first}–v{last}"
        name = API[ROUTES[key].key].name
        assert f"| {int(key)} | [{name}](#{name.lower()}) | {versions} |" in page
    assert "  session_timeout_ms: Int32\n" in page
    assert "      topic_id: Uuid (v13+)\n" in page or "    topic_id: Uuid (v13+)\n" in page


def test_what_is_advertised_overlaps_what_old_clients_test_for() -> None:
    """librdkafka before 2.11.1 takes a broker for able by overlap with a single version."""
    single = {
        "Produce": (0, 1, 2, 3, 7), "Fetch": (4, 10), "ListOffsets": (0, 1),
        "FindCoordinator": (0,),
        "JoinGroup": (0,), "SyncGroup": (0,), "Heartbeat": (0,), "LeaveGroup": (0,),
        "OffsetCommit": (1, 2), "OffsetFetch": (1,), "InitProducerId": (0,), "ApiVersions": (0, 3),
    }  # fmt: skip
    ranges = {API[route.key].name: route.versions for route in ROUTES.values()}
    for name, needed in single.items():
        first, last = ranges[name]
        assert all(first <= version <= last for version in needed), name


@pytest.mark.slow
def test_what_is_advertised_together_is_one_release_of_apache_kafka() -> None:
    """kafka-python tells the release from single versions, and goes by what that one can do: a
    version too new for the others, and it asks for those as well, if it was told a release.
    """
    from kafka.protocol import broker_version_data

    versions = {int(route.key): route.versions for route in ROUTES.values()}
    assert broker_version_data.infer_broker_version_from_api_versions(versions) == (3, 9)
