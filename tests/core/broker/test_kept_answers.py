"""Metadata about very many partitions: made and encoded once for each state of the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kafkalite.core.broker.kept_answers import KeptAnswers
from kafkalite.core.cluster.image import ClusterImage
from kafkalite.core.handlers import metadata as handlers
from kafkalite.core.pending import Encoded, Pending
from kafkalite.core.protocol import codec
from kafkalite.core.protocol.metadata import MetadataRequest, MetadataRequestTopic
from kafkalite.core.protocol.topics import DeleteTopicsRequest
from kafkalite.core.types import RequestContext, TopicPartition

Start = Any
MANY = 20  # partitions: here an answer is as large as one of 200
ALL = MetadataRequest(None)


@pytest.fixture(autouse=True)
def small_answers_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "LARGE_PARTITIONS", MANY)


async def ask(
    broker: Any, request: Any = ALL, version: int = 12, listener: str = "PLAINTEXT"
) -> Any:
    """The answer, which must be what one that is made anew would be."""
    context = RequestContext(version, "c", "/h", listener=listener)
    answer = handlers.metadata(broker, request, context)
    if isinstance(answer, Pending):
        await until(lambda: answer.response)
        answer = answer.response
    making = handlers._metadata(broker, request, context)
    while True:
        try:
            next(making)
        except StopIteration as stop:
            anew = stop.value
            break
    data = answer.data if isinstance(answer, Encoded) else codec.encode(answer, version)
    assert data == codec.encode(anew, version)
    return answer


async def until(condition: Callable[[], Any]) -> None:
    for _ in range(20_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came to be")


def test_an_answer_is_kept_for_each_form_of_the_request(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            broker = running.broker
            await (await running.connect()).create("t", MANY)
            one = MetadataRequest((MetadataRequestTopic(name="t"),))
            operations = MetadataRequest(None, include_topic_authorized_operations=True)
            forms = [(ALL, 12), (ALL, 11), (one, 12), (operations, 9)]
            first = [(await ask(broker, *form)).data for form in forms]
            again = [(await ask(broker, *form)).data for form in forms]
            assert all(a is b for a, b in zip(first, again, strict=True))
            assert len(broker.kept_answers) == len(forms)
            elsewhere = await ask(broker, listener="ELSEWHERE")  # where no broker is reached
            assert elsewhere.data not in first
            assert len(broker.kept_answers) == len(forms), "one with errors is not kept"

    asyncio.run(story())


@pytest.mark.parametrize("change", ["create", "delete", "broker", "offline", "online"])
def test_nothing_is_kept_over_a_change(start: Start, change: str) -> None:
    async def story() -> None:
        async with start() as running:
            broker, peer = running.broker, await running.connect()
            for name in ("t", "other"):
                await peer.create(name, MANY)
            offline, here = broker.partitions.offline, TopicPartition("other", 3)
            if change == "online":
                offline[here] = "a disk"
            before = await ask(broker)
            if change == "create":
                await peer.create("new")
            elif change == "delete":
                await peer.ask(DeleteTopicsRequest(topic_names=("other",)), 5)
            elif change == "broker":
                from kafkalite.core.cluster.image import ClusterRecord

                await broker.steering.apply((ClusterRecord(f"/brokers/{broker.node_id}", None),))
            elif change == "offline":
                offline[here] = "a disk"
            else:
                del offline[here]
            assert (await ask(broker)).data != before.data
            offline.clear()

    asyncio.run(story())


def test_an_answer_that_is_old_once_it_is_encoded_is_not_kept(start: Start) -> None:
    """As where a broker that left is listed no more: the image is the same."""

    async def story() -> None:
        async with start() as running:
            await (await running.connect()).create("t", MANY)
            answer = handlers.metadata(running.broker, ALL, RequestContext(12))
            assert isinstance(answer, Pending)
            running.broker.kept_answers.clear()
            await until(lambda: answer.response)
            assert not len(running.broker.kept_answers)

    asyncio.run(story())


def test_small_answers_are_not_kept(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            await (await running.connect()).create("t", MANY - 1)
            assert not isinstance(await ask(running.broker), Encoded)
            assert not len(running.broker.kept_answers)

    asyncio.run(story())


def test_three_hundred_clients_that_ask_at_once_have_one_answer_made(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    make: Callable[..., Any] = handlers._response
    monkeypatch.setattr(handlers, "_response", lambda *a: (made.append(a), make(*a))[1])

    async def story() -> None:
        async with start() as running:
            await (await running.connect()).create("t", MANY)
            peers = [await running.connect() for _ in range(300)]
            made.clear()
            answers = await asyncio.gather(*(peer.ask(ALL, 9) for peer in peers))
            assert {len(answer.topics[0].partitions) for answer in answers} == {MANY}
            assert len(made) == 1

    asyncio.run(story())


def test_the_oldest_answers_go_when_there_are_too_many_bytes() -> None:
    kept = KeptAnswers(bytes_max=10)
    kept.set_state(ClusterImage(), frozenset(), 1)
    for name, size in (("a", 4), ("b", 4), ("c", 4), ("large", 11)):
        kept.keep(name, b"", lambda _, size=size: bytes(size))
    assert [kept.find(name) and len(kept.find(name).data) for name in ("a", "b", "c", "large")] == [
        None, 4, 4, None,
    ]  # fmt: skip
