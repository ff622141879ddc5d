"""Every error kafkalite raises, and the error codes that Kafka peers tell each other.     [P]

KafkaliteError
├── WireError              bytes that are not what the protocol says
│   ├── TooManyEntries     a message whose arrays hold more entries than its reader allows
│   └── CorruptBatchError  a record batch whose CRC, length or framing is wrong
│   │   └── DecompressedTooLarge  its records decompress to more bytes than are allowed
├── UnanswerableError      a request that a broker can only answer by hanging up
├── ApiError               a request refused, with Kafka's error code: raised where a broker
│   │                      refuses and where a client hears of it
│   ├── RecordsTooLarge    because the batch decompresses to more bytes than are allowed
│   ├── RecordsRefused     for some records of the batch, by their index
│   └── LogTruncation      records that a consumer has read are gone from the log
├── BrokerUnavailable      no broker answers at the address, or the connection broke
├── StorageError           the disk refused or holds something it should not
│   └── DataDirectoryInUse another process holds the lock
├── CoordinationError      the cluster's shared state (ZooKeeper or the embedded one) refused
│   ├── NoSuchNode         no value at the path
│   ├── NodeExists         the path is taken
│   ├── VersionMismatch    somebody else wrote in between
│   │   └── ControllerDeposed  another controller was elected
│   ├── CoordinationUnavailable  there is no connection; nothing was written
│   └── OutcomeUnknown     the answer to a write was lost: it may have happened or not
├── ConfigError            an unknown or invalid setting, named
├── TopologyError          a topology that makes no sense, named by operator
│   └── UnsupportedOnBackend  an engine cannot run this node
├── ProcessingError        a user function or a serde failed on a record, named by its place
└── SerdeError             bytes that a serde cannot read, values that it cannot write
    └── SchemaError        the registry refuses or does not know a schema

A message names the thing and the numbers: `orders-3: sequence 17, expected 15`.
Source: apache/kafka `Errors`.
"""

from __future__ import annotations

from copy import copy
from enum import IntEnum
from typing import Final, Self


class KafkaliteError(Exception):
    """The root of the tree. Commands print its message as one line and exit with 1."""


class WireError(KafkaliteError):
    """Bytes that are not what the protocol says; the connection that sent them is closed."""


class TooManyEntries(WireError):
    """A message whose arrays and tagged fields hold more entries than its reader allows."""


class CorruptBatchError(WireError):
    """A record batch whose magic, length, CRC or framing is wrong."""


class DecompressedTooLarge(CorruptBatchError):
    """A record batch whose records decompress to more bytes than are allowed."""


class UnanswerableError(KafkaliteError):
    """A request to which no response exists; the connection that sent it is closed."""


class BrokerUnavailable(KafkaliteError):
    """Nobody answers at the address, or the connection broke before the answer."""


class StorageError(KafkaliteError):
    """The disk refused an operation, or holds what it should not."""


class DataDirectoryInUse(StorageError):
    """Another process holds the data directory's lock."""


class CoordinationError(KafkaliteError):
    """The cluster's shared state refused an operation, or cannot be reached."""


class NoSuchNode(CoordinationError):
    """There is no value at the path."""


class NodeExists(CoordinationError):
    """The path is taken, or has children that must go first."""


class VersionMismatch(CoordinationError):
    """Somebody else wrote the value since it was read."""


class ControllerDeposed(VersionMismatch):
    """Another controller was elected: this one may write no more."""


class CoordinationUnavailable(CoordinationError):
    """There was no connection within the time allowed. Nothing was written."""


class OutcomeUnknown(CoordinationError):
    """The answer to a write was lost: it may have happened or not. A read tells."""


class ConfigError(KafkaliteError):
    """An unknown or invalid setting; the message names it and its value.

    `setting` is its name, empty where the value came from elsewhere: who read it from a file can
    tell the line.
    """

    def __init__(self, message: str, *, setting: str = "") -> None:
        super().__init__(message)
        self.setting = setting


class TopologyError(KafkaliteError):
    """A topology that makes no sense; the message names the operator."""


class UnsupportedOnBackend(TopologyError):
    """An engine cannot run this node of a plan; raised before anything runs."""


class ProcessingError(KafkaliteError):
    """A user function or serde failed on a record; the message names topic, partition, offset."""


class SerdeError(KafkaliteError):
    """Bytes that a serde cannot read, or a value that it cannot write.

    `words` names the serde, the topic, the value and the reason; `index` is the record's place in
    the column that was given, None where no record is to blame. The message has both. A caller who
    knows where the record lies in the log says so with `of_record`:

        except SerdeError as error:
            if error.index is None or columns.offsets is None:
                raise
            raise error.of_record(f"{tp}, offset {columns.offsets[error.index]}") from None
    """

    def __init__(self, words: str, index: int | None = None) -> None:
        super().__init__(words)
        self.words = words
        self.index = index
        self._record = ""

    def of_record(self, record: str) -> Self:
        """The same error, whose message names the record instead of its place in the column."""
        named = copy(self)
        named._record = record
        return named

    def __str__(self) -> str:
        if self._record:
            return f"{self._record}: {self.words}"
        return self.words if self.index is None else f"{self.words} (record {self.index}, from 0)"


class SchemaError(SerdeError):
    """A schema that is none, or that the registry refuses or does not know.

    `code` is the registry's reason in Confluent's numbers, whose first three digits are HTTP's;
    None where the schema itself is at fault.
    """

    def __init__(self, words: str, index: int | None = None, *, code: int | None = None) -> None:
        super().__init__(words, index)
        self.code = code


class ErrorCode(IntEnum):
    """Kafka's error codes: what a peer must be told is data."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    INVALID_UPDATE_VERSION = 95
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    TRANSACTION_ABORTABLE = 120

    @classmethod
    def _missing_(cls, value: object) -> ErrorCode | None:
        """A code that a newer broker sends and we do not know is a server error."""
        return cls.UNKNOWN_SERVER_ERROR if isinstance(value, int) else None

    @property
    def is_retriable(self) -> bool:
        """Whether the same request may succeed later, once metadata or coordinator are known."""
        return self in RETRIABLE


RETRIABLE: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    }
)


class ApiError(KafkaliteError):
    """A request, or a part of it, refused with one of Kafka's error codes.

    `words` is the message alone: what a response carries beside the code.
    """

    def __init__(self, error_code: ErrorCode, message: str = "") -> None:
        super().__init__(f"{message}: {error_code.name}" if message else error_code.name)
        self.error_code = error_code
        self.words = message


class RecordsTooLarge(ApiError):
    """A batch refused because it decompresses to more bytes than are allowed."""


class LogTruncation(ApiError):
    """Records that a consumer has read are gone: another log took the place of theirs.

    `offset` is where the logs part, −1 if nobody knows. Source KIP-320.
    """

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(ErrorCode.OFFSET_OUT_OF_RANGE, message)
        self.offset = offset


class RecordsRefused(ApiError):
    """A batch refused for some of its records; `records` are their indexes, with words.

    Source KIP-467.
    """

    def __init__(
        self, error_code: ErrorCode, message: str, records: tuple[tuple[int, str], ...]
    ) -> None:
        super().__init__(error_code, message)
        self.records = records
