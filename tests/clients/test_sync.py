"""The blocking clients: threads, callbacks, interruptions, and the interpreter's exit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from kafkalite.clients import Columns, NewTopic, TopicPartition
from kafkalite.clients.sync import Admin, Consumer, Producer, TransactionalProducer
from kafkalite.clients.sync.loop_thread import loop_thread
from kafkalite.errors import ApiError, ConfigError, ErrorCode

MakeTopic = Callable[..., str]
WAIT_MS = 30_000
SECONDS_MAX = 60.0


def columns(*values: bytes) -> Columns:
    return Columns([None] * len(values), list(values), [1] * len(values))


def sent(bootstrap: str, topic: str, *values: bytes, partition: int = 0) -> None:
    with Producer(bootstrap) as producer:
        producer.send_columns(topic, columns(*values), partition=partition)


@contextmanager
def reader(bootstrap: str, *partitions: TopicPartition) -> Iterator[Consumer]:
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions)
        yield consumer


def values_of(bootstrap: str, topic: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    with reader(bootstrap, TopicPartition(topic, 0)) as consumer:
        while len(found) < count:
            for polled in consumer.poll(WAIT_MS).values():
                found += polled.values
    return found


def test_errors_are_those_of_the_asynchronous_clients(bootstrap: str, topic: str) -> None:
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(topic)])
        with pytest.raises(ApiError) as told:
            admin.create_topics([NewTopic(topic)])
        assert told.value.error_code is ErrorCode.TOPIC_ALREADY_EXISTS
    with pytest.raises(ConfigError, match="acks is 7"):
        Producer(bootstrap, acks=7)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="the producer is not started"):
        Producer(bootstrap).send(topic, b"")


def test_two_clients_may_share_their_connections(bootstrap: str, topic: str) -> None:
    with Admin(bootstrap) as admin, Producer(admin.client) as producer:
        assert producer.send(topic, b"one").result(SECONDS_MAX).offset == 0
        assert topic in admin.list_topics()
        assert producer.buffered_bytes == 0


def test_many_threads_may_send(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    with Producer(bootstrap) as producer, ThreadPoolExecutor(8) as threads:

        def send(number: int) -> int:
            return producer.send(topic, b"%d" % number).result(SECONDS_MAX).offset

        offsets = list(threads.map(send, range(200)))
    assert sorted(offsets) == list(range(200))
    values = values_of(bootstrap, topic, 200)
    assert [values[offset] for offset in offsets] == [b"%d" % number for number in range(200)]


def test_callbacks_run_in_the_polling_thread_and_may_use_the_consumer(
    bootstrap: str, make_topic: MakeTopic, group: str
) -> None:
    topic = make_topic(2)
    calls: list[tuple[str, int, int]] = []
    sent(bootstrap, topic, b"a", b"b")
    consumer = Consumer(
        bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
    )

    def assigned(partitions: tuple[TopicPartition, ...]) -> None:
        calls.append(("assigned", len(partitions), threading.get_ident()))

    def revoked(partitions: tuple[TopicPartition, ...]) -> None:
        consumer.commit()
        calls.append(("revoked", len(partitions), threading.get_ident()))

    with consumer:
        consumer.subscribe([topic], on_assigned=assigned, on_revoked=revoked)
        next(iter(consumer))
    here = threading.get_ident()
    assert calls == [("assigned", 2, here), ("revoked", 2, here)]
    with Consumer(bootstrap, group_id=group) as again:
        place = TopicPartition(topic, 0)
        committed = again.committed([place])[place]
        assert committed is not None
        assert committed.offset == 2


def test_an_error_of_a_callback_is_an_error_of_the_poll(
    bootstrap: str, make_topic: MakeTopic, group: str
) -> None:
    def assigned(partitions: tuple[TopicPartition, ...]) -> None:
        raise LookupError("no room for them")

    topic = make_topic(1)
    with Consumer(bootstrap, group_id=group) as consumer:
        consumer.subscribe([topic], on_assigned=assigned)
        with pytest.raises(LookupError, match="no room"):
            consumer.poll(WAIT_MS)


def test_records_that_a_loop_left_behind_are_read_again(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(2)
    places = [TopicPartition(topic, n) for n in range(2)]
    for place in places:
        sent(bootstrap, place.topic, b"one", b"two", partition=place.partition)
    with reader(bootstrap, *places) as consumer:
        first = next(place for place, _ in consumer)
        rest = {place: list(polled.values) for place, polled in consumer.poll(WAIT_MS).items()}
        (other,) = set(places) - {first}
        assert rest == {other: [b"one", b"two"]}
        assert {consumer.position(place) for place in places} == {2}


def test_records_given_back_are_not_read_where_the_reader_has_gone_elsewhere(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    place = TopicPartition(make_topic(1), 0)
    sent(bootstrap, place.topic, b"one", b"two", b"three")
    with reader(bootstrap, place) as consumer:
        polled = consumer.poll(WAIT_MS)
        consumer.seek(place, 2)
        consumer.give_back(polled)
        assert consumer.poll(WAIT_MS)[place].values == [b"three"]


def test_a_consumer_that_another_thread_closes_ends_its_loop(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    place = TopicPartition(make_topic(1), 0)
    sent(bootstrap, place.topic, b"one")
    seen = threading.Event()

    def read(consumer: Consumer) -> int:
        count = 0
        for _, polled in consumer:
            count += len(polled)
            seen.set()
        return count

    with reader(bootstrap, place) as consumer, ThreadPoolExecutor(1) as threads:
        counted = threads.submit(read, consumer)
        assert seen.wait(SECONDS_MAX)
        consumer.close()
        assert counted.result(SECONDS_MAX) == 1


def test_a_transaction_is_aborted_by_whatever_ends_its_block(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(1)
    with TransactionalProducer(bootstrap, f"of {topic}") as producer:
        for error in (LookupError, KeyboardInterrupt):
            with pytest.raises(error), producer.transaction():
                producer.send(topic, b"void")
                raise error
        with producer.transaction():
            producer.send(topic, b"one")
    with Consumer(
        bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert next(iter(consumer))[1].values == [b"one"]


def test_ctrl_c_ends_a_poll_and_leaves_the_consumer_whole(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    place = TopicPartition(make_topic(1), 0)
    with reader(bootstrap, place) as consumer:
        interrupt = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        # A process that a shell started in the background ignores Ctrl-C.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(WAIT_MS)
        signal.signal(signal.SIGINT, before)
        sent(bootstrap, place.topic, b"one")
        assert consumer.poll(WAIT_MS)[place].values == [b"one"]


def test_a_result_that_nobody_took_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from kafkalite.clients.sync import loop_thread as room

    def interrupted(call: Any) -> Any:
        raise KeyboardInterrupt

    async def work() -> str:
        return "records"

    async def nothing() -> None:
        return None

    given_back: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(room.Call, "_result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop_thread().run(work, given_back.append)
    loop_thread().run(nothing)  # the loop has had its turn
    assert given_back == ["records"]


def test_a_blocking_call_in_the_loop_s_own_thread_is_refused(bootstrap: str) -> None:
    with Producer(bootstrap) as producer:

        async def flush() -> None:
            producer.flush()

        with pytest.raises(RuntimeError, match="waits for itself"):
            loop_thread().run(flush)


def run(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX)


def test_the_exit_of_the_interpreter_sends_what_is_buffered(bootstrap: str, topic: str) -> None:
    script = (
        "import sys\n"
        "from kafkalite.clients.sync import Producer\n"
        "producer = Producer(sys.argv[1], linger_ms=3_600_000)\n"
        "producer.start()\n"
        "producer.send(sys.argv[2], b'last')\n"
    )
    done = run(script, bootstrap, topic)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert values_of(bootstrap, topic, 1) == [b"last"]


def test_a_forked_child_needs_a_client_of_its_own(bootstrap: str, topic: str) -> None:
    script = (
        "import os, sys\n"
        "from kafkalite.clients.sync import Admin\n"
        "admin = Admin(sys.argv[1])\n"
        "admin.start()\n"
        "if os.fork():\n"
        "    os.wait()\n"
        "    print(type(admin.list_topics()).__name__)\n"
        "else:\n"
        "    with Admin(sys.argv[1]) as own:\n"
        "        print(type(own.list_topics()).__name__)\n"
        "    try:\n"
        "        admin.list_topics()\n"
        "    except RuntimeError as error:\n"
        "        print(error)\n"
        "    sys.stdout.flush()\n"
    )
    done = run(script, bootstrap)
    told = "a blocking client does not outlive a fork; make it in the child"
    assert done.stdout.splitlines() == ["list", told, "list"], done
    assert done.returncode == 0
