"""What a worker commits, against a real broker: all of it or nothing, and nothing once fenced."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import Consumer, GroupMetadata, OffsetAndMetadata
from kafkalite.clients.producer.transactional import TransactionalProducer
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.embedded import EmbeddedBroker
from kafkalite.errors import ApiError, ErrorCode
from kafkalite.streams import Streams, string
from kafkalite.streams.local.batch import Output
from kafkalite.streams.local.committer import (
    AtLeastOnce,
    Committer,
    ExactlyOnce,
    Guarantee,
    abort_orphans,
    has_transactions,
    is_passing,
    make_committer,
    transactional_id,
)
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.member_producer import MemberProducer
from kafkalite.streams.local.restore import Restore, look_up
from kafkalite.streams.local.task import Task

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


def row(key: bytes) -> Columns:
    return Columns([key], [key], [1])


async def make_topics(address: str, *names: str) -> None:
    async with Admin(address) as admin:
        await admin.create_topics([NewTopic(name, 1) for name in names])


async def read(address: str, topic: str) -> list[bytes | None]:
    """The committed keys."""
    partition = TopicPartition(topic, 0)
    found: list[bytes | None] = []
    async with Consumer(address, isolation_level="read_committed") as consumer:
        (end,) = (await consumer.end_offsets([partition])).values()
        consumer.assign([partition])
        consumer.seek_to_beginning([partition])
        while (consumer.position(partition) or 0) < end:
            for columns in (await consumer.poll(500)).values():
                found += columns.keys
    return found


@asynccontextmanager
async def member(address: str, group: str, guarantee: Guarantee) -> AsyncIterator[Committer]:
    """A committer of a consumer that has its place in the group."""
    consumer = Consumer(
        address,
        group_id=group,
        group_instance_id="one",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    async with Client(address) as client, consumer:
        consumer.subscribe([f"{group}-in"])
        while not consumer.assignment:
            await consumer.poll(100)
        name = transactional_id(client, group, None)
        committer = make_committer(client, consumer, name, guarantee=guarantee, timeout_ms=60_000)
        await committer.start()
        try:
            yield committer
        finally:
            await committer.close()


def test_a_worker_that_was_cast_out_and_has_not_heard_of_it_in_a_poll_commits_nothing() -> None:
    """Its heartbeat has: the member has no generation, and no id that a coordinator could check."""

    class Transaction:
        sent = 0

        def begin(self) -> None: ...

        async def send_offsets(self, *_: object) -> None:
            self.sent += 1

        async def flush(self) -> None: ...

        async def commit(self) -> None: ...

    class CastOut:
        identity = GroupMetadata("group", 3, "member-1")

        def group_metadata(self) -> GroupMetadata:
            return self.identity

    async def scenario() -> None:
        consumer, transaction = CastOut(), Transaction()
        committer = ExactlyOnce(None, consumer, "group-1", 60_000)  # type: ignore[arg-type]
        committer._producer = transaction  # type: ignore[assignment]
        offsets = {TopicPartition("in", 0): OffsetAndMetadata(7)}
        await committer.commit([], offsets, offsets)
        assert transaction.sent == 1
        consumer.identity = GroupMetadata("group")
        with pytest.raises(ApiError, match="gone on without this worker") as info:
            await committer.commit([], offsets, offsets)
        assert is_passing(info.value)
        assert transaction.sent == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("is_known", [False, True])
def test_what_an_earlier_process_of_this_name_left_open_is_ended_first(is_known: bool) -> None:
    """No rebalance follows the return of a static member, so no leader ends it."""

    class Started:
        is_started = False

        async def start(self) -> None:
            self.is_started = True

    outputs, consumer, state = Started(), Started(), Started()
    committer = AtLeastOnce(lambda: outputs, consumer, state, is_known=is_known)  # type: ignore[arg-type]
    asyncio.run(committer.start())
    assert state.is_started is is_known


@pytest.mark.parametrize("is_member", [True, False])
def test_outputs_that_waited_beyond_a_session_leave_once_the_group_says_so(
    address: str, is_member: bool
) -> None:
    """The worker may have been paused since, and its successor have written newer results."""
    topic = f"waited-{is_member}"

    class Member:
        is_in_doubt = True
        asked = 0

        async def confirm_membership(self) -> None:
            self.asked += 1
            await asyncio.sleep(0.01)
            if not is_member:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, "it was silent for too long")
            self.is_in_doubt = False

    async def scenario() -> None:
        await make_topics(address, topic)
        member = Member()
        async with Client(address) as client, MemberProducer(client, member) as producer:  # type: ignore[arg-type]
            for key in (b"a", b"b"):
                await producer.send_columns(topic, row(key))
            if is_member:
                await producer.flush()
            else:
                with pytest.raises(ApiError, match="UNKNOWN_MEMBER_ID"):
                    await producer.flush()
        assert member.asked == 1
        assert await read(address, topic) == ([b"a", b"b"] if is_member else [])

    asyncio.run(scenario())


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_worker_that_is_no_member_commits_nothing(address: str, guarantee: Guarantee) -> None:
    """A broker would take its offsets: such is what a producer without a consumer sends."""
    group = f"no-member-{guarantee}"
    partition = TopicPartition(f"{group}-in", 0)

    async def write(committer: Committer, offset: int) -> None:
        offsets = {partition: OffsetAndMetadata(offset)}
        await committer.commit([(0, Output(f"{group}-log", row(b"k"), None))], offsets, offsets)

    async def scenario() -> None:
        await make_topics(address, f"{group}-in", f"{group}-log")
        async with member(address, group, guarantee) as owner:
            await write(owner, 7)
            async with (
                Client(address) as client,
                Consumer(client, group_id=group, enable_auto_commit=False) as evicted,
            ):
                name = transactional_id(client, group, None)
                other = make_committer(
                    client, evicted, name, guarantee=guarantee, timeout_ms=60_000
                )
                await other.start()
                with pytest.raises(ApiError, match="UNKNOWN_MEMBER_ID"):
                    await write(other, 0)
                await other.close()
                committed = await evicted.committed([partition])
        assert committed[partition] == OffsetAndMetadata(7)
        assert await read(address, f"{group}-log") == [b"k"]

    asyncio.run(scenario())


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_worker_that_was_replaced_changes_no_state(address: str, guarantee: Guarantee) -> None:
    group = guarantee.replace("_", "-")
    offsets = {TopicPartition(f"{group}-in", 0): OffsetAndMetadata(7)}

    async def write(committer: Committer, name: bytes) -> None:
        await committer.send(Output(f"{group}-out", row(name), None))
        await committer.commit([(0, Output(f"{group}-log", row(name), None))], offsets, offsets)

    async def scenario() -> None:
        await make_topics(address, f"{group}-in", f"{group}-out", f"{group}-log")
        async with member(address, group, guarantee) as old:
            await write(old, b"before")
            async with member(address, group, guarantee) as new:
                await write(new, b"new")
                with pytest.raises(ApiError, match="FENCED_INSTANCE_ID"):
                    await write(old, b"zombie")
                await old.abort()
                assert await read(address, f"{group}-log") == [b"before", b"new"]
                zombies = [b"zombie"] if guarantee == "at_least_once" else []
                assert await read(address, f"{group}-out") == [b"before", b"new", *zombies]
                await write(new, b"and on")
                assert await read(address, f"{group}-log") == [b"before", b"new", b"and on"]

    asyncio.run(scenario())


def test_what_was_not_committed_leaves_no_trace_and_the_next_record_begins_anew(
    address: str,
) -> None:
    async def scenario() -> None:
        await make_topics(address, "undone-in", "undone-out")
        async with member(address, "undone", "exactly_once") as committer:
            await committer.send(Output("undone-out", row(b"lost"), None))
            await committer.abort()
            assert not await committer.commit([], {}, {}), "nothing is open"
            await committer.start()
            await committer.send(Output("undone-out", row(b"kept"), None))
            assert await committer.commit([], {}, {})
        assert await read(address, "undone-out") == [b"kept"]

    asyncio.run(scenario())


def test_a_dead_workers_transaction_is_aborted_and_a_living_ones_is_not(address: str) -> None:
    async def scenario() -> None:
        await make_topics(address, "orphan-out", "orphan-too-out")
        async with Client(address) as client, Consumer(address, group_id="orphan") as consumer:

            async def begun(application: str, topic: str, timeout_ms: int = 60_000) -> str:
                name = transactional_id(client, application, None)
                committer = make_committer(
                    client, consumer, name, guarantee="exactly_once", timeout_ms=timeout_ms
                )
                await committer.start()
                open_ones.append(committer)
                await committer.send(Output(topic, row(b"open"), None))
                async with Admin(client) as admin:
                    while name not in {t.transactional_id for t in await admin.list_transactions()}:
                        await asyncio.sleep(0.01)
                return name

            open_ones: list[Committer] = []
            try:
                dead = await begun("orphan", "orphan-out")
                living = await begun("orphan", "orphan-out")
                await begun("orphan-too", "orphan-too-out")
                assert await abort_orphans(client, "orphan", {living}) == [dead]
                assert await abort_orphans(client, "orphan", {living}) == []
                assert await open_ones[1].commit([], {}, {})
                assert await read(address, "orphan-out") == [b"open"]
            finally:
                for committer in open_ones:
                    await committer.close()

    asyncio.run(scenario())


def test_a_static_member_has_one_id_in_all_its_lives_and_others_a_new_one(address: str) -> None:
    client = Client(address)
    assert transactional_id(client, "app", "a") == transactional_id(client, "app", "a")
    names = {transactional_id(client, "app", who) for who in ("a", "b", None, None)}
    assert len(names) == 4

    async def scenario() -> None:
        async with client:
            assert await has_transactions(client)

    asyncio.run(scenario())


def test_state_is_restored_beyond_a_transaction_that_is_open(address: str) -> None:
    """What was committed behind an open transaction belongs to the committed offsets, too."""
    app = Streams("behind", key=string(), value=string())
    app.stream("behind-in").to_table(name="rows")

    async def scenario() -> None:
        await make_topics(address, "behind-in", "behind-rows-changelog")
        (sub,) = compile_topology(app.plan())
        task = Task(sub, 0)
        async with (
            Client(address) as client,
            TransactionalProducer(client, "hangs") as hangs,
            TransactionalProducer(client, "commits") as commits,
        ):
            hangs.begin()
            await hangs.send_columns("behind-rows-changelog", row(b"a"))
            await hangs.flush()
            async with commits.transaction():
                await commits.send_columns("behind-rows-changelog", row(b"b"))
            replays = await look_up(client, [task], 0)
            restore = Restore(client, replays, time.monotonic, lambda: 0)
            assert not (await restore.step(100)).is_over
            await hangs.abort()
            while not (await restore.step(100)).is_over:
                pass
            await restore.close()
            assert restore.records == 1
        assert [key for key, _ in task.store("rows").all()] == ["b"]

    asyncio.run(scenario())
