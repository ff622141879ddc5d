"""kcat, as Linux distributions ship it: with a librdkafka of years ago."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka
import pytest

KCAT = shutil.which("kcat") or shutil.which("kafkacat")
pytestmark = pytest.mark.skipif(KCAT is None, reason="kcat is not in PATH")

SECONDS_MAX = 30.0
EPOCH_MS = 1_700_000_000_000
ASSIGNED = re.compile(r"rebalanced .*assigned: (.*)")


def kcat(bootstrap: str, *arguments: str, stdin: bytes = b"") -> bytes:
    """What it prints; it must not fail."""
    command = [str(KCAT), "-b", bootstrap, "-m", "30", *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def consume(bootstrap: str, topic: str, *arguments: str, start: str = "beginning") -> bytes:
    """Everything from `start` to the end."""
    quick = ["-X", "fetch.wait.max.ms=10"]
    return kcat(bootstrap, "-C", "-t", topic, "-o", start, "-e", "-q", *quick, *arguments)


def read_all(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in consume(bootstrap, topic, "-J").splitlines()]


@pytest.mark.parametrize("idempotent", ["false", "true"])
def test_what_is_produced_is_consumed(bootstrap: str, topic: str, idempotent: str) -> None:
    lines = b"".join(b"key%d:value %d\n" % (i % 7, i) for i in range(1_000))
    kcat(bootstrap, "-P", "-t", topic, "-K:", "-X", f"enable.idempotence={idempotent}", stdin=lines)
    assert consume(bootstrap, topic, "-K:") == lines


def test_nulls_headers_and_timestamps(bootstrap: str, topic: str) -> None:
    headers = ["-H", "a=1", "-H", "a=2", "-H", "empty="]
    kcat(bootstrap, "-P", "-t", topic, "-K:", *headers, stdin=b"k:v\n")
    kcat(bootstrap, "-P", "-t", topic, "-K:", "-Z", stdin=b"tombstone:\n")
    kcat(bootstrap, "-P", "-t", topic, stdin=b"no key\n")
    first, tombstone, keyless = read_all(bootstrap, topic)
    assert (first["key"], first["payload"]) == ("k", "v")
    assert first["headers"] == ["a", "1", "a", "2", "empty", ""]
    assert first["tstype"] == "create"
    assert first["ts"] > EPOCH_MS
    assert (tombstone["key"], tombstone["payload"]) == ("tombstone", None)
    assert (keyless["key"], keyless["payload"]) == (None, "no key")
    assert [m["offset"] for m in (first, tombstone, keyless)] == [0, 1, 2]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_kept_as_they_came(
    bootstrap: str, topic: str, codec: str, codecs_on_disk: Callable[[str], set[str]]
) -> None:
    """librdkafka before 2.11.1 drops compression where Produce v0 is not advertised."""
    lines = b"".join(b"the same again and again %d\n" % i for i in range(500))
    config = ["-X", f"compression.codec={codec}", "-X", "linger.ms=50"]
    kcat(bootstrap, "-P", "-t", topic, *config, stdin=lines)
    assert codecs_on_disk(topic) == {codec}
    assert consume(bootstrap, topic) == lines


def test_offsets_to_start_from(bootstrap: str, topic: str) -> None:
    kcat(bootstrap, "-P", "-t", topic, stdin=b"".join(b"%d\n" % i for i in range(10)))

    def offsets(start: str) -> list[int]:
        return [int(line) for line in consume(bootstrap, topic, "-f", "%o\n", start=start).split()]

    assert offsets("beginning") == [*range(10)]
    assert offsets("7") == [7, 8, 9]
    assert offsets("-2") == [8, 9]
    assert offsets("end") == []
    assert offsets(f"s@{EPOCH_MS}") == [*range(10)]


def test_offsets_for_times(bootstrap: str, topic: str) -> None:
    kcat(bootstrap, "-P", "-t", topic, stdin=b"0\n1\n")
    first, _ = read_all(bootstrap, topic)
    asked = {EPOCH_MS: 0, first["ts"]: 0, -1: 2, -2: 0}
    for ms, offset in asked.items():
        printed = kcat(bootstrap, "-Q", "-t", f"{topic}:0:{ms}").decode()
        assert printed.strip() == f"{topic} [0] offset {offset}"


def test_metadata_of_all_topics_and_of_one(
    bootstrap: str, make_topic: Callable[[int], str]
) -> None:
    topic = make_topic(3)
    every = json.loads(kcat(bootstrap, "-L", "-J"))
    assert topic in {described["topic"] for described in every["topics"]}
    one = json.loads(kcat(bootstrap, "-L", "-J", "-t", topic))
    (described,) = one["topics"]
    assert [p["partition"] for p in described["partitions"]] == [0, 1, 2]
    (node,) = one["brokers"]
    assert node["name"] == bootstrap
    assert one["controllerid"] == node["id"]


class Member:
    """A kcat in a group; `news` is told of its records and of what it is assigned."""

    def __init__(self, bootstrap: str, group: str, topic: str, news: threading.Condition) -> None:
        command = [str(KCAT), "-b", bootstrap, "-G", group, "-u", "-f", "%p %o\n"]
        command += ["-X", "auto.offset.reset=earliest", "-X", "heartbeat.interval.ms=100", topic]
        self.records: list[tuple[int, int]] = []
        self.assigned = 0
        self._news = news
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
        for target in (self._read_records, self._read_assignments):
            threading.Thread(target=target, daemon=True).start()

    def _read_records(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            partition, offset = line.split()
            with self._news:
                self.records.append((int(partition), int(offset)))
                self._news.notify_all()

    def _read_assignments(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if found := ASSIGNED.search(line):
                with self._news:
                    self.assigned = len(found.group(1).split(", "))
                    self._news.notify_all()


@contextmanager
def member(bootstrap: str, group: str, topic: str, news: threading.Condition) -> Iterator[Member]:
    running = Member(bootstrap, group, topic, news)
    try:
        yield running
    finally:
        running.process.terminate()
        running.process.wait(SECONDS_MAX)


def test_two_members_share_a_topic_and_no_record_is_seen_twice(
    bootstrap: str, make_topic: Callable[[int], str], group: str
) -> None:
    topic = make_topic(4)
    news = threading.Condition()

    def until(condition: Callable[[], bool]) -> None:
        with news:
            assert news.wait_for(condition, SECONDS_MAX)

    def send(count: int) -> None:
        for partition in range(4):
            lines = b"x\n" * (count // 4)
            kcat(bootstrap, "-P", "-t", topic, "-p", str(partition), stdin=lines)

    send(40)
    with member(bootstrap, group, topic, news) as first:
        until(lambda: len(first.records) == 40)
        with member(bootstrap, group, topic, news) as second:
            until(lambda: first.assigned == second.assigned == 2)
            send(200)
            until(lambda: len(first.records) + len(second.records) >= 240)
        until(lambda: first.assigned == 4)
        send(40)
        until(lambda: len(first.records) + len(second.records) >= 280)
    got = sorted(first.records + second.records)
    assert got == [(p, offset) for p in range(4) for offset in range(70)]


def test_a_group_goes_on_where_it_committed(bootstrap: str, topic: str, group: str) -> None:
    kcat(bootstrap, "-P", "-t", topic, stdin=b"".join(b"%d\n" % i for i in range(10)))

    def some(count: int) -> list[int]:
        config = ["-X", "auto.offset.reset=earliest", "-c", str(count)]
        printed = kcat(bootstrap, "-G", group, "-q", "-f", "%o\n", *config, topic)
        return [int(line) for line in printed.split()]

    assert some(4) == [0, 1, 2, 3]
    assert some(6) == [4, 5, 6, 7, 8, 9]


def test_a_pattern_chooses_topics(bootstrap: str, topic: str, group: str) -> None:
    for name in (f"{topic}-one", f"not-{topic}", f"{topic}-two"):
        kcat(bootstrap, "-P", "-t", name, stdin=b"1\n2\n")
    config = ["-X", "auto.offset.reset=earliest", "-c", "4"]
    printed = kcat(bootstrap, "-G", group, "-q", "-f", "%t %o\n", *config, f"^{topic}-.*")
    chosen = [f"{topic}-{which} {offset}" for which in ("one", "two") for offset in (0, 1)]
    assert sorted(printed.decode().splitlines()) == chosen


def test_a_static_member_returns_at_once(bootstrap: str, topic: str, group: str) -> None:
    """kcat's member does not leave; the next one with its id takes its place."""
    kcat(bootstrap, "-P", "-t", topic, stdin=b"".join(b"%d\n" % i for i in range(10)))
    static = ["-X", "group.instance.id=kcat", "-X", "session.timeout.ms=300000"]
    for expected in ([0, 1, 2], [3, 4, 5], [6, 7, 8]):
        config = ["-X", "auto.offset.reset=earliest", "-c", "3", *static]
        printed = kcat(bootstrap, "-G", group, "-q", "-f", "%o\n", *config, topic)
        assert [int(line) for line in printed.split()] == expected


@pytest.mark.needs("AddPartitionsToTxn", "EndTxn")
def test_only_committed_records_are_read(bootstrap: str, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(SECONDS_MAX)
    for value, end in (
        (b"kept", producer.commit_transaction),
        (b"thrown away", producer.abort_transaction),
        (b"kept too", producer.commit_transaction),
    ):
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        assert producer.flush(SECONDS_MAX) == 0
        end(SECONDS_MAX)
    isolation = ["-X", "isolation.level=read_committed"]
    assert consume(bootstrap, topic, *isolation) == b"kept\nkept too\n"
    isolation = ["-X", "isolation.level=read_uncommitted"]
    assert consume(bootstrap, topic, *isolation) == b"kept\nthrown away\nkept too\n"
