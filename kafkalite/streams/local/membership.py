"""A worker as a member of its group: the consumer that joins, and what a refusal means.    [IO]

A member that the group refuses for good is another one in its next membership: with a longer
session where the broker allows no shorter one, without an identity that another process has.

Owns   nothing: a worker keeps the consumer, and the settings of its next membership.
Fails  with Refused where another member may try, with ApiError for the rest.
Source KIP-345 (FENCED_INSTANCE_ID).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import ApiError, ErrorCode, KafkaliteError, TopologyError
from kafkalite.streams.local.assignor import TaskAssignor
from kafkalite.streams.local.committer import Guarantee, has_transactions, transactional_id
from kafkalite.streams.local.settings import FETCH_BYTES, WorkerConfig

SESSION_TIMEOUT_MS_SAFE: Final = 6_000  # what brokers allow that are not set up otherwise
HEARTBEATS_PER_SESSION: Final = 6
REFUSALS: Final = frozenset(
    {
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.INVALID_SESSION_TIMEOUT,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
    }
)


class Refused(KafkaliteError):
    """The group refuses this member for good; another may try."""


def make_consumer(
    client: Client, application_id: str, config: WorkerConfig, assignor: TaskAssignor
) -> Consumer:
    """A consumer that joins the group with its first poll."""
    return Consumer(
        client,
        group_id=application_id,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        assignors=(assignor,),
        session_timeout_ms=config.session_timeout_ms,
        heartbeat_interval_ms=config.session_timeout_ms // HEARTBEATS_PER_SESSION,
        max_poll_interval_ms=config.max_poll_interval_ms,
        max_partition_fetch_bytes=FETCH_BYTES,
        group_instance_id=config.group_instance_id,
        isolation_level="read_committed",
        as_forms=True,
        allow_auto_create_topics=False,  # an input that is deleted is not made anew
    )


async def poll(consumer: Consumer, timeout_ms: float) -> Mapping[TopicPartition, Columns]:
    """Records, after the callbacks for what the group has decided."""
    try:
        return await consumer.poll(timeout_ms=timeout_ms)
    except ApiError as error:
        if error.error_code in REFUSALS:
            raise Refused(str(error)) from error
        raise


def next_config(config: WorkerConfig, error: Refused) -> WorkerConfig:
    """Settings of a membership that the group may take."""
    cause = error.__cause__
    assert isinstance(cause, ApiError), cause
    if cause.error_code is ErrorCode.FENCED_INSTANCE_ID:
        # Another process has the identity; two would fence each other for ever.
        return replace(config, group_instance_id=None)
    if cause.error_code is ErrorCode.INVALID_SESSION_TIMEOUT:
        return replace(config, session_timeout_ms=SESSION_TIMEOUT_MS_SAFE)
    return config


async def find_transactional_id(
    client: Client,
    application_id: str,
    instance_id: str | None,
    guarantee: Guarantee | None,
    servers: str,
) -> str | None:
    """The name of a worker in transactions; None where the broker has no transactions."""
    if await has_transactions(client):
        return transactional_id(client, application_id, instance_id)
    if guarantee == "exactly_once":
        raise TopologyError(
            f"{application_id}: the broker at {servers} has no "
            "transactions that a group can fence, which exactly_once needs; run it with "
            "processing_guarantee='at_least_once'"
        )
    return None
