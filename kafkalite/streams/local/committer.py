"""How outputs, changelogs and input offsets of a worker reach the log together.           [IO]

                   exactly once                      at least once
    outputs        in the transaction                at once, acknowledged before the rest
    changelogs     in the transaction                in a small transaction of their own,
    offsets        in the transaction                together with the offsets

Either way a changelog and the offsets that it belongs to are committed together or not at all, and
the group's coordinator refuses both from a worker that the group has gone on without. So a worker
that was paused never overwrites the state of its successor: what it wrote is aborted, and a restore
reads committed records only.

A transaction begins with its first record and ends with the commit. It may last as long as a user
function may block; a shorter timeout would abort a slow record's transaction at every attempt.

Owns   the worker's producers.
Never  commits offsets before what follows from them.
Fails  with ApiError or BrokerUnavailable. `abort` is then due, and the tasks are to be made anew
       from their last commit: whether the failed one went through is for the log to say.
Source KIP-98, KIP-447 (one producer a worker, fenced by the group's metadata), KIP-664 (which
       transactions are open).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, Literal, Protocol

from kafkalite.clients.admin.client import Admin
from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import Consumer, GroupMetadata, OffsetAndMetadata
from kafkalite.clients.producer.producer import Producer
from kafkalite.clients.producer.transactional import TransactionalProducer
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ApiError, BrokerUnavailable, ErrorCode, KafkaliteError
from kafkalite.streams.local.batch import Output
from kafkalite.streams.local.member_producer import MemberProducer

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
Changes = Sequence[tuple[int, Output]]  # by partition, what a changelog is to hear
Guarantee = Literal["at_least_once", "exactly_once"]

GROUP_METADATA_SINCE: Final = 3  # the version of TxnOffsetCommit that names the group's member
UNFINISHED: Final = ("Ongoing",)  # what a coordinator calls a transaction that nobody has ended
ID_BYTES: Final = 16
FENCED: Final = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
TOPIC_GONE: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)


class Committer(Protocol):
    """Writes what tasks make, and commits it."""

    async def start(self) -> None:
        """Makes it ready, at first and after `abort`; else nothing. What an earlier producer of
        the same id left open is aborted: no restore waits for it."""

    async def send(self, output: Output) -> None:
        """Hands in records."""

    async def commit(self, changes: Changes, offsets: Offsets, moved: Offsets) -> bool:
        """Commits everything handed in, `changes` and `offsets`; whether anything was to be done.

        `moved` are the offsets that are not committed yet.
        """

    def end_offset(self, changelog: TopicPartition) -> int | None:
        """The offset behind what was last written to a changelog, as far as that is known."""

    async def abort(self) -> None:
        """Drops uncommitted work. It never fails; `start` is due before the next record."""

    async def close(self) -> None:
        """Aborts the open transaction, and disconnects."""


class ExactlyOnce:
    """One transaction from commit to commit."""

    def __init__(
        self, client: Client, consumer: Consumer, transactional_id: str, timeout_ms: int
    ) -> None:
        self._client = client
        self._consumer = consumer
        self._id = transactional_id
        self._timeout_ms = timeout_ms
        self._is_open = False
        self._producer: TransactionalProducer | None = None

    async def start(self) -> None:
        """Gets the producer id, in a new epoch."""
        if self._producer is None:
            producer = TransactionalProducer(
                self._client, self._id, transaction_timeout_ms=self._timeout_ms, linger_ms=0
            )
            await producer.start()
            self._producer = producer

    async def send(self, output: Output) -> None:
        """Hands in records."""
        await _send(self._begun(), output)

    async def commit(self, changes: Changes, offsets: Offsets, moved: Offsets) -> bool:
        """Ends the transaction; without records and moved offsets there is none."""
        if not (self._is_open or changes or moved):
            return False
        producer = self._begun()
        for partition, output in changes:
            await producer.send_columns(output.topic, output.columns, partition=partition)
        if wanted := moved or offsets:  # also unmoved ones are refused to a fenced worker
            identity = self._identity()
            await _both(producer.send_offsets(wanted, identity), producer.flush())
        await producer.commit()
        self._is_open = False
        return True

    def end_offset(self, changelog: TopicPartition) -> int | None:
        """The marker of the commit stands behind it."""
        return None if self._producer is None else self._producer.end_offset(changelog)

    async def abort(self) -> None:
        """Aborts by a new epoch: this works after every failure, and ends what a silent
        coordinator may have begun."""
        self._is_open = False
        if self._producer is not None:
            producer, self._producer = self._producer, None
            await producer.close(flush=False)

    async def close(self) -> None:
        """Aborts the open transaction."""
        await self.abort()

    def _identity(self) -> GroupMetadata:
        """Who this worker is in its group. The coordinator takes a transaction's offsets from
        nobody in particular, too: so a worker that the group has cast out asks in vain here."""
        identity = self._consumer.group_metadata()
        if not identity.member_id:
            what = f"group {identity.group_id} has gone on without this worker"
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, what)
        return identity

    def _begun(self) -> TransactionalProducer:
        assert self._producer is not None, "the committer is not started"
        if not self._is_open:
            self._producer.begin()
            self._is_open = True
        return self._producer


class AtLeastOnce:
    """Outputs at once; `state` commits changelogs and offsets together.

    Without `state` (a broker without transactions) changelogs are written, then offsets are
    committed: there a worker that was paused may write a changelog before it is refused.
    """

    def __init__(
        self,
        make_outputs: Callable[[], Producer],
        consumer: Consumer,
        state: ExactlyOnce | None,
        *,
        is_known: bool = False,
    ) -> None:
        self._make_outputs = make_outputs
        self._outputs = make_outputs()
        self._consumer = consumer
        self._state = state
        self._is_started = False
        self._writes_state = is_known  # an earlier process may have left a transaction open

    async def start(self) -> None:
        """Gets a producer id for the outputs; one for changelogs once there was one to write, or
        if another process may have written there under the same id."""
        if not self._is_started:
            await self._outputs.start()
            self._is_started = True
        if self._state is not None and self._writes_state:
            await self._state.start()

    async def send(self, output: Output) -> None:
        """Hands in records, which leave at once: after a pause only those of a member, so that
        what its successor has written stays the last."""
        await self._consumer.confirm_membership()
        await _send(self._outputs, output)

    async def commit(self, changes: Changes, offsets: Offsets, moved: Offsets) -> bool:
        """Outputs first: a changelog may say that a window is closed."""
        if not self._is_started:  # no task has been here yet
            return False
        await self._outputs.flush()
        if changes and self._state is not None:
            self._writes_state = True
            await self._state.start()
            return await self._state.commit(changes, offsets, moved)
        for partition, output in changes:
            await self._outputs.send_columns(output.topic, output.columns, partition=partition)
        await self._outputs.flush()
        if moved:
            await self._consumer.commit(moved)
        return bool(moved)

    def end_offset(self, changelog: TopicPartition) -> int | None:
        """As the producer of the changelogs knows it."""
        return (self._state or self._outputs).end_offset(changelog)

    async def abort(self) -> None:
        """Aborts the changelogs, and drops outputs that wait: they will be made again."""
        if self._is_started:
            self._is_started = False
            await self._outputs.close(flush=False)
            self._outputs = self._make_outputs()
        if self._state is not None:
            await self._state.abort()

    async def close(self) -> None:
        """Sends nothing more."""
        await self._outputs.close(flush=False)
        if self._state is not None:
            await self._state.close()


async def _both(first: Coroutine[Any, Any, None], second: Coroutine[Any, Any, None]) -> None:
    """Waits for both at the same time; the first failure ends the other, too."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(first)
            group.create_task(second)
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None


async def _send(producer: Producer, output: Output) -> None:
    await producer.send_columns(
        output.topic, output.columns, partition=output.partition, partitions=output.partitions
    )


def is_passing(error: KafkaliteError) -> bool:
    """Whether a worker may go on, from its last commit, after this error of a broker.

    It was fenced, evicted, or the broker is away. A topic that is gone does not come back.
    """
    if isinstance(error, ApiError):
        code = error.error_code
        return code in FENCED or (code.is_retriable and code not in TOPIC_GONE)
    return isinstance(error, BrokerUnavailable)


async def has_transactions(client: Client) -> bool:
    """Whether the broker's transactions can be fenced by a group's metadata."""
    connection = await client.connect_any()
    try:
        for key in (ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN):
            connection.version_of(key)
        return connection.version_of(ApiKey.TXN_OFFSET_COMMIT) >= GROUP_METADATA_SINCE
    except ApiError:
        return False


def transactional_id(client: Client, application_id: str, instance_id: str | None) -> str:
    """A worker's id, which `abort_orphans` knows for the application's.

    A static member has the same one in every life, and so ends what its last life left open.
    Any other worker has one that no other process has.
    """
    if instance_id is None:
        return f"{application_id}-{client.random.getrandbits(8 * ID_BYTES):0{2 * ID_BYTES}x}"
    return f"{application_id}-{blake2b(instance_id.encode(), digest_size=ID_BYTES).hexdigest()}"


def make_committer(
    client: Client,
    consumer: Consumer,
    name: str | None,
    *,
    guarantee: Guarantee,
    timeout_ms: int,
    is_known: bool = False,
) -> Committer:
    """The committer of a guarantee; `name` None: the broker has no transactions.

    `is_known`: an earlier process may have had the same name.
    """
    whole = None
    if name is not None:
        whole = ExactlyOnce(client, consumer, name, timeout_ms)
    if guarantee == "exactly_once":
        assert whole is not None, "exactly once needs transactions"
        return whole
    return AtLeastOnce(lambda: MemberProducer(client, consumer), consumer, whole, is_known=is_known)


async def abort_orphans(client: Client, application_id: str, living: Collection[str]) -> list[str]:
    """Aborts the open transactions of the application's workers that are not among the `living`.

    Else readers would wait for a dead worker's transaction until it times out. A worker that was
    only paused is fenced by this; the group had gone on without it anyhow. A broker that lists no
    transactions leaves them to their timeout.
    """
    ours = re.compile(re.escape(application_id) + f"-[0-9a-f]{{{2 * ID_BYTES}}}")
    async with Admin(client) as admin:
        try:
            listed = await admin.list_transactions(states=UNFINISHED)
        except KafkaliteError:
            return []
        names = [found.transactional_id for found in listed]
        orphans = [name for name in names if ours.fullmatch(name) and name not in living]
        for name in orphans:
            await admin.fence_producer(name)
    return orphans
