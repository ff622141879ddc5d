"""A broker's refusal in words for the user: the code's meaning, and the probable right name.  [IO]

    topic 'ordrs' does not exist at 127.0.0.1:9092; did you mean 'orders'?
    group billing: it has members, stop them first (NON_EMPTY_GROUP)

Owns   nothing. Asks the broker for its names only after it refused one.
Fails  with KafkaliteError in those words; with the refusal itself where no name is to blame.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from kafkalite.core.nearest import did_you_mean
from kafkalite.errors import ApiError, BrokerUnavailable, ErrorCode, KafkaliteError

if TYPE_CHECKING:
    from kafkalite.clients.admin.client import Admin

# What brokers leave to the code: they send no message beside it.
MEANINGS: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "the broker does not allow this user to do that",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "its coordinator does not answer yet, try again",
    ErrorCode.FENCED_INSTANCE_ID: "another member uses the same group.instance.id",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "the broker does not allow this user to use the group",
    ErrorCode.GROUP_ID_NOT_FOUND: "it does not exist",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "a member of the group reads the topic, stop it first",
    ErrorCode.INVALID_TOPIC_EXCEPTION: (
        "not a topic's name: expected 1 to 249 ASCII letters, digits, '.', '_' or '-'"
    ),
    ErrorCode.KAFKA_STORAGE_ERROR: "the broker's disk failed, see the broker's log",
    ErrorCode.LEADER_NOT_AVAILABLE: "no broker leads it at present",
    ErrorCode.MESSAGE_TOO_LARGE: "larger than max.message.bytes of the topic",
    ErrorCode.NON_EMPTY_GROUP: "it has members, stop them first",
    ErrorCode.NOT_ENOUGH_REPLICAS: "fewer replicas are in sync than min.insync.replicas asks for",
    ErrorCode.REQUEST_TIMED_OUT: "the broker did not finish in time; the change may come later",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "the broker does not allow this user to use the topic",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "no such transactional id",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "it does not exist",
    ErrorCode.UNSUPPORTED_VERSION: "the broker is too old, or does not have this feature",
}

NOBODY: Final = "no broker answers at"
REMEDY: Final = "; -b HOST:PORT names another broker, 'kafkalite server start' starts one"


def in_words(error: KafkaliteError) -> str:
    """The message of an error, with the meaning of a Kafka error code."""
    if isinstance(error, BrokerUnavailable):
        return f"{error}{REMEDY if NOBODY in str(error) else ''}"
    if not isinstance(error, ApiError):
        return str(error)
    words = error.words or "the broker refused"
    if ": " not in words:  # the broker gave no reason
        words = ": ".join([words, *filter(None, [MEANINGS.get(error.error_code)])])
    return f"{words} ({error.error_code.name})"


@asynccontextmanager
async def explaining(
    admin: Admin,
    bootstrap_servers: str,
    *,
    topics: Collection[str] = (),
    groups: Collection[str] = (),
    topic_settings: Collection[str] = (),
    remedy: str = "",
) -> AsyncIterator[None]:
    """Names the thing at fault when the broker refuses one of these names.

    `remedy` ends the message about a topic that does not exist.
    """
    try:
        yield
    except ApiError as error:
        words = None
        if error.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            there = await admin.list_topics()
            words = _unknown("topic", topics, there, error.words, bootstrap_servers, remedy)
        elif error.error_code is ErrorCode.GROUP_ID_NOT_FOUND:
            listed = [group.group_id for group in await admin.list_groups()]
            words = _unknown("group", groups, listed, error.words, bootstrap_servers)
        elif error.error_code is ErrorCode.INVALID_CONFIG:
            words = _unknown_setting(error, topic_settings)
        if words is None:
            raise
        raise KafkaliteError(words) from error


def _unknown(
    what: str, named: Collection[str], there: Collection[str], words: str, at: str, remedy: str = ""
) -> str | None:
    """The message about one of the `named` that does not exist; the broker's `words` tell which."""
    missing = [name for name in named if name not in there]
    if not missing:
        return None
    name = max((name for name in missing if name in words), key=len, default=missing[0])
    hint = did_you_mean(name, there)
    if not (hint or remedy):
        remedy = f"To see which {what}s exist: kafkalite {what}s list -b {at}"
    return f"{what} '{name}' does not exist at {at}{hint or '.'} {remedy}".rstrip()


def _unknown_setting(error: ApiError, named: Collection[str]) -> str | None:
    from kafkalite.core.config.keys import TOPIC_KEYS

    for name in named:
        hint = did_you_mean(name, TOPIC_KEYS) if name not in TOPIC_KEYS else ""
        if hint and name in error.words:
            return f"{error.words}{hint}"
    return None
