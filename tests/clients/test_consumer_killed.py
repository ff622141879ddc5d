"""Our consumers in a group, and a broker that is killed while one of them is gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kafkalite.clients import NewTopic, TopicPartition
from kafkalite.clients.sync import Admin, Consumer

KILLS = 3
TURNS_MAX = 600
SESSION_MS = 200_000  # longer than anybody here waits


def test_a_member_that_left_before_kill_9_is_not_waited_for(
    serve: Callable[..., Any], tmp_path: Path, topic: str, group: str
) -> None:
    server = serve(tmp_path)
    address = server.address
    everything = {TopicPartition(topic, n) for n in range(4)}

    def join() -> Consumer:
        consumer = Consumer(
            address, group_id=group, session_timeout_ms=SESSION_MS, heartbeat_interval_ms=100
        )
        consumer.start()
        consumer.subscribe([topic])
        return consumer

    def share(one: Consumer, other: Consumer) -> None:
        for _ in range(TURNS_MAX):
            for consumer in (one, other):
                consumer.poll(50)
            if other.assignment and everything - set(one.assignment) == set(other.assignment):
                return
        raise AssertionError(f"{one.assignment} and {other.assignment} after {TURNS_MAX} turns")

    with Admin(address) as admin:
        admin.create_topics([NewTopic(topic, 4)])
    with join() as stays:
        for _ in range(KILLS):
            with join() as goes:
                share(stays, goes)
            server.kill()
            server = serve(tmp_path, address)
        with join() as goes:
            share(stays, goes)
    assert "Traceback" not in server.stderr
