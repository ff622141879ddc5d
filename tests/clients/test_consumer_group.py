"""Consumers in a group against a real broker: sharing, rebalances, commits, static members."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.assignors import (
    COOPERATIVE_STICKY,
    RANGE,
    Assignment,
    Assignor,
    RebalanceProtocol,
    Subscription,
)
from kafkalite.clients.consumer.consumer import Consumer, OffsetAndMetadata
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import ApiError, ErrorCode

Run = Callable[[Any], None]
Name = Callable[[], str]
TURNS_MAX = 2_000


async def created(client: Client, topic: str, partitions: int) -> list[TopicPartition]:
    async with Admin(client) as admin:
        await admin.create_topics([NewTopic(topic, partitions)])
    return [TopicPartition(topic, p) for p in range(partitions)]


async def sent(client: Client, tps: Sequence[TopicPartition], count: int) -> None:
    async with Producer(client) as producer:
        for tp in tps:
            values = [b"%d" % i for i in range(count)]
            columns = Columns([None] * count, values, [0] * count)
            await producer.send_columns(tp.topic, columns, partition=tp.partition)


async def until(condition: Callable[[], bool], *consumers: Consumer) -> list[int]:
    """Polls all consumers in turn until the condition holds; returns the values they got."""
    seen: list[int] = []
    for _ in range(TURNS_MAX):
        if condition():
            return seen
        for consumer in consumers:
            for columns in (await consumer.poll(10)).values():
                seen += map(int, columns.values)
    pytest.fail(f"not so after {TURNS_MAX} turns: {[c.assignment for c in consumers]}")


def is_at(consumer: Consumer, tp: TopicPartition, offset: int) -> bool:
    return tp in consumer.assignment and consumer.position(tp) == offset


async def keep_polling(consumer: Consumer) -> None:
    for _ in range(TURNS_MAX):
        await consumer.poll(10)


class Diary:
    """Writes down what the callbacks are told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def callbacks(self) -> dict[str, Callable[..., Any]]:
        async def assigned(tps: Sequence[TopicPartition]) -> None:
            await asyncio.sleep(0)
            self.write("+", tps)

        return {
            "on_revoked": lambda tps: self.write("-", tps),
            "on_assigned": assigned,
            "on_lost": lambda tps: self.write("!", tps),
        }

    def write(self, sign: str, tps: Sequence[TopicPartition]) -> None:
        self.lines.append(sign + ",".join(str(tp.partition) for tp in tps))


def test_a_lone_member_gets_everything_and_goes_on_where_it_stopped(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            topic, group = name(), name()
            tps = await created(client, topic, 3)
            await sent(client, tps, 10)
            settings: dict[str, Any] = {"group_id": group, "auto_offset_reset": "earliest"}
            async with Consumer(client, **settings) as consumer:
                consumer.subscribe([topic])
                seen = await until(lambda: consumer.assignment == tuple(tps), consumer)
                seen += await until(lambda: all(consumer.lag(tp) == 0 for tp in tps), consumer)
                assert sorted(seen) == sorted([*range(10)] * 3)
                who = consumer.group_metadata()
                assert (who.group_id, who.generation_id >= 0) == (group, True)
                assert who.member_id
            await sent(client, tps[:1], 1)
            async with Consumer(client, **settings) as consumer:  # closing has committed
                consumer.subscribe([topic])
                assert await until(lambda: is_at(consumer, tps[0], 11), consumer) == [0]

    run(scenario)


def test_what_was_polled_is_committed_at_the_interval(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            topic = name()
            (tp,) = await created(client, topic, 1)
            await sent(client, [tp], 5)
            async with Consumer(
                client, group_id=name(), auto_offset_reset="earliest", auto_commit_interval_ms=20
            ) as consumer:
                consumer.subscribe([topic])
                await until(lambda: is_at(consumer, tp, 5), consumer)
                for _ in range(TURNS_MAX):
                    await consumer.poll(10)
                    kept = (await consumer.committed([tp]))[tp]
                    if kept is not None and kept.offset == 5:
                        return
                pytest.fail("never committed")

    run(scenario)


def test_eager_members_share_and_take_over(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client, AsyncExitStack() as stack:
            topic, group = name(), name()
            tps = await created(client, topic, 4)
            diaries = [Diary(), Diary()]
            first, second = [
                await stack.enter_async_context(
                    Consumer(client, group_id=group, assignors=[RANGE], heartbeat_interval_ms=50)
                )
                for _ in diaries
            ]
            first.subscribe([topic], **diaries[0].callbacks())
            await until(lambda: len(first.assignment) == 4, first)
            second.subscribe([topic], **diaries[1].callbacks())
            await until(lambda: len(first.assignment) == len(second.assignment) == 2, first, second)
            assert {*first.assignment, *second.assignment} == {*tps}
            await first.close()
            await until(lambda: len(second.assignment) == 4, second)
            half = ",".join(str(tp.partition) for tp in tps[:2])
            other = ",".join(str(tp.partition) for tp in tps[2:])
            kept, given = (half, other) if diaries[0].lines[2] == f"+{half}" else (other, half)
            assert diaries[0].lines == ["+0,1,2,3", "-0,1,2,3", f"+{kept}", f"-{kept}"]
            assert diaries[1].lines == [f"+{given}", f"-{given}", "+0,1,2,3"]

    run(scenario)


def test_cooperative_members_give_up_only_what_moves(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client, AsyncExitStack() as stack:
            topic, group = name(), name()
            tps = await created(client, topic, 4)
            await sent(client, tps, 10)
            diaries = [Diary(), Diary()]
            first, second = [
                await stack.enter_async_context(
                    Consumer(
                        client,
                        group_id=group,
                        auto_offset_reset="earliest",
                        assignors=[COOPERATIVE_STICKY],
                        heartbeat_interval_ms=50,
                    )
                )
                for _ in diaries
            ]
            first.subscribe([topic], **diaries[0].callbacks())
            seen = await until(lambda: len(first.assignment) == 4, first)
            seen += await until(lambda: all(first.lag(tp) == 0 for tp in tps), first)
            second.subscribe([topic], **diaries[1].callbacks())
            seen += await until(lambda: len(second.assignment) == 2, first, second)
            assert {*first.assignment, *second.assignment} == {*tps}
            assert all(first.position(tp) == 10 for tp in first.assignment), "it kept its place"
            moved = ",".join(str(tp.partition) for tp in second.assignment)
            told = [[line for line in diary.lines if line != "+"] for diary in diaries]
            assert told == [["+0,1,2,3", f"-{moved}"], [f"+{moved}"]]
            await sent(client, tps, 1)
            everywhere = [(c, tp) for c in (first, second) for tp in c.assignment]
            seen += await until(
                lambda: all(c.position(tp) == 11 for c, tp in everywhere), first, second
            )
            assert sorted(seen) == sorted([*range(10), 0] * 4), "nothing twice, nothing lost"

    run(scenario)


def test_a_pattern_follows_the_topics_that_match(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        prefix = name()
        async with Client(bootstrap, metadata_max_age_ms=100) as client:
            await created(client, f"{prefix}-a", 1)
            await created(client, f"other-{prefix}-a", 1)
            async with Consumer(client, group_id=name()) as consumer:
                consumer.subscribe(re.compile(f"{prefix}-.*"))
                await until(lambda: len(consumer.assignment) == 1, consumer)
                await created(client, f"{prefix}-b", 2)
                await until(lambda: len(consumer.assignment) == 3, consumer)
                topics = {tp.topic for tp in consumer.assignment}
                assert topics == {f"{prefix}-a", f"{prefix}-b"}

    run(scenario)


def test_new_topics_and_new_partitions_are_noticed(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap, metadata_max_age_ms=100) as client, Admin(client) as admin:
            here, later = name(), name()
            await created(client, here, 1)
            async with Consumer(
                client, group_id=name(), allow_auto_create_topics=False
            ) as consumer:
                consumer.subscribe([here, later])
                await until(lambda: len(consumer.assignment) == 1, consumer)
                await created(client, later, 1)
                await until(lambda: len(consumer.assignment) == 2, consumer)
                await admin.create_partitions({here: 3})
                await until(lambda: len(consumer.assignment) == 4, consumer)

    run(scenario)


def test_another_subscription_replaces_the_first(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            one, two = name(), name()
            await created(client, one, 1)
            await created(client, two, 1)
            diary = Diary()
            async with Consumer(client, group_id=name()) as consumer:
                consumer.subscribe([one], **diary.callbacks())
                await until(lambda: [tp.topic for tp in consumer.assignment] == [one], consumer)
                consumer.subscribe([two], **diary.callbacks())
                await until(lambda: [tp.topic for tp in consumer.assignment] == [two], consumer)
                assert diary.lines == ["+0", "-0", "+0"]

    run(scenario)


def test_a_member_that_does_not_poll_loses_its_partitions(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            topic, group, diary = name(), name(), Diary()
            (tp,) = await created(client, topic, 1)
            async with (
                Consumer(
                    client, group_id=group, max_poll_interval_ms=400, heartbeat_interval_ms=50
                ) as idle,
                Consumer(client, group_id=group, heartbeat_interval_ms=50) as busy,
            ):
                idle.subscribe([topic], **diary.callbacks())
                await until(lambda: idle.assignment == (tp,), idle)
                busy.subscribe([topic])
                await until(lambda: busy.assignment == (tp,), busy)
                await idle.poll()
                assert diary.lines == ["+0", "!0"]
                with pytest.raises(ApiError):
                    await idle.commit({tp: 1})

    run(scenario)


def test_a_static_member_comes_back_without_a_rebalance(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            topic, group = name(), name()
            await created(client, topic, 2)

            def member(instance: str) -> Consumer:
                made = Consumer(
                    client, group_id=group, group_instance_id=instance, heartbeat_interval_ms=50
                )
                made.subscribe([topic])
                return made

            async with member("a") as first, member("b") as second:
                await until(
                    lambda: len(first.assignment) == len(second.assignment) == 1, first, second
                )
                before = first.group_metadata().generation_id
                had = second.assignment
                await second.close()
                async with member("b") as again:
                    await until(lambda: again.assignment == had, again, first)
                    assert again.group_metadata().generation_id == before

    run(scenario)


def test_a_static_member_that_leaves_makes_room_at_once(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            topic, group = name(), name()
            await created(client, topic, 2)

            def member(instance: str) -> Consumer:
                made = Consumer(
                    client,
                    group_id=group,
                    group_instance_id=instance,
                    heartbeat_interval_ms=50,
                    session_timeout_ms=300_000,
                )
                made.subscribe([topic])
                return made

            async with member("a") as first, member("b") as second:
                await until(
                    lambda: len(first.assignment) == len(second.assignment) == 1, first, second
                )
                await second.close(leave_group=True)
                await until(lambda: len(first.assignment) == 2, first)

    run(scenario)


def test_a_static_leader_that_came_back_notices_new_partitions(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap, metadata_max_age_ms=100) as client, Admin(client) as admin:
            topic, group = name(), name()
            await created(client, topic, 1)
            for partitions in (1, 2):
                async with Consumer(
                    client, group_id=group, group_instance_id="a", heartbeat_interval_ms=50
                ) as consumer:
                    consumer.subscribe([topic])
                    await until(lambda: len(consumer.assignment) == 1, consumer)
                    if partitions > 1:
                        await admin.create_partitions({topic: partitions})
                        await until(lambda: len(consumer.assignment) == 2, consumer)

    run(scenario)


def test_a_second_member_of_the_same_instance_fences_the_first(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            topic, group = name(), name()
            await created(client, topic, 1)
            settings: dict[str, Any] = {
                "group_id": group,
                "group_instance_id": "a",
                "heartbeat_interval_ms": 50,
            }
            async with (
                Consumer(client, **settings) as first,
                Consumer(client, **settings) as second,
            ):
                first.subscribe([topic])
                await until(lambda: len(first.assignment) == 1, first)
                second.subscribe([topic])
                await until(lambda: len(second.assignment) == 1, second)
                with pytest.raises(ApiError, match="taken the place of instance a") as caught:
                    await keep_polling(first)
                assert caught.value.error_code is ErrorCode.FENCED_INSTANCE_ID

    run(scenario)


class EverythingToOne:
    """An assignor of one's own: it carries bytes both ways."""

    name = "everything-to-one"
    rebalance_protocol = RebalanceProtocol.EAGER

    def __init__(self, weight: int) -> None:
        self.weight = weight
        self.told: list[bytes] = []

    def subscription_user_data(
        self, topics: Sequence[str], owned: Sequence[TopicPartition]
    ) -> bytes:
        return bytes([self.weight])

    def assign(
        self, partitions_of: Mapping[str, int], subscriptions: Mapping[str, Subscription]
    ) -> Mapping[str, Assignment]:
        heaviest = max(subscriptions, key=lambda m: subscriptions[m].user_data)
        everything = tuple(TopicPartition(t, p) for t, n in partitions_of.items() for p in range(n))
        return {
            m: Assignment(everything if m == heaviest else (), b"heaviest is here")
            for m in subscriptions
        }

    def on_assignment(self, assignment: Assignment) -> None:
        self.told.append(assignment.user_data)


def test_an_assignor_of_ones_own_decides(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client, AsyncExitStack() as stack:
            topic, group = name(), name()
            await created(client, topic, 3)
            assignors: list[Assignor] = [EverythingToOne(1), EverythingToOne(2)]
            light, heavy = [
                await stack.enter_async_context(
                    Consumer(client, group_id=group, assignors=[a], heartbeat_interval_ms=50)
                )
                for a in assignors
            ]
            light.subscribe([topic])
            await until(lambda: len(light.assignment) == 3, light)
            heavy.subscribe([topic])
            await until(lambda: len(heavy.assignment) == 3, light, heavy)
            assert light.assignment == ()
            assert isinstance(assignors[1], EverythingToOne)
            assert assignors[1].told == [b"heaviest is here"]

    run(scenario)


class Broken(EverythingToOne):
    name = "broken"

    def assign(
        self, partitions_of: Mapping[str, int], subscriptions: Mapping[str, Subscription]
    ) -> Mapping[str, Assignment]:
        raise ZeroDivisionError("no weights")


def test_an_assignor_that_fails_is_an_error_of_every_poll(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            topic = name()
            await created(client, topic, 1)
            async with Consumer(client, group_id=name(), assignors=[Broken(1)]) as consumer:
                consumer.subscribe([topic])
                for _ in range(2):
                    with pytest.raises(ZeroDivisionError, match="no weights"):
                        await keep_polling(consumer)

    run(scenario)


def test_callbacks_may_seek_and_commit(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            topic, group = name(), name()
            (tp,) = await created(client, topic, 1)
            await sent(client, [tp], 10)

            def assigned(tps: Sequence[TopicPartition]) -> None:
                consumer.seek(tps[0], 4)

            async def revoked(tps: Sequence[TopicPartition]) -> None:
                await consumer.commit({tps[0]: 8})

            async with Consumer(client, group_id=group, enable_auto_commit=False) as consumer:
                consumer.subscribe([topic], on_assigned=assigned, on_revoked=revoked)
                seen = await until(lambda: is_at(consumer, tp, 10), consumer)
                assert seen == [4, 5, 6, 7, 8, 9]
            async with Consumer(client, group_id=group) as another:
                kept = (await another.committed([tp]))[tp]
                assert kept is not None
                assert kept.offset == 8

    run(scenario)


def test_a_subscription_may_come_before_the_start(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            topic = name()
            tps = await created(client, topic, 1)
            consumer = Consumer(client, group_id=name())
            consumer.subscribe([topic])
            async with consumer:
                await until(lambda: consumer.assignment == tuple(tps), consumer)

    run(scenario)


def test_members_without_a_common_assignor_are_refused(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            topic, group = name(), name()
            await created(client, topic, 1)
            async with (
                Consumer(client, group_id=group, assignors=[RANGE]) as first,
                Consumer(client, group_id=group, assignors=[EverythingToOne(1)]) as second,
            ):
                first.subscribe([topic])
                await until(lambda: len(first.assignment) == 1, first)
                second.subscribe([topic])
                with pytest.raises(ApiError, match=f"group {group} refuses this member"):
                    await keep_polling(second)

    run(scenario)


def test_a_commit_that_cannot_be_is_refused_and_costs_no_partition(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client:
            topic = name()
            (tp,) = await created(client, topic, 1)
            lost: list[TopicPartition] = []
            async with Consumer(client, group_id=name(), enable_auto_commit=False) as consumer:
                consumer.subscribe([topic], on_revoked=lost.extend)
                await until(lambda: consumer.assignment == (tp,), consumer)
                with pytest.raises(ValueError, match="offset -5 is negative"):
                    await consumer.commit({tp: -5})
                with pytest.raises(ApiError, match="does not take the offset") as refused:
                    await consumer.commit({tp: OffsetAndMetadata(1, metadata="x" * 5_000)})
                assert refused.value.error_code is ErrorCode.OFFSET_METADATA_TOO_LARGE
                await consumer.poll(10)
                await consumer.commit({tp: 1})
                assert (consumer.assignment, lost) == ((tp,), [])
            for call in (
                consumer.commit,
                lambda: consumer.committed([tp]),
            ):
                with pytest.raises(RuntimeError, match="closed"):
                    await call()
            for what in (consumer.group_metadata, lambda: consumer.subscribe([topic])):
                with pytest.raises(RuntimeError, match="closed"):
                    what()

    run(scenario)
