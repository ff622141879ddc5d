"""DescribeLogDirs: what the data directory holds, and how full its disk is.                [D]

There is one directory. Partitions that are offline are left out.

Source KIP-113, KIP-827 (sizes of the disk).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from kafkalite.core.handlers.routes import handles
from kafkalite.core.handlers.slices import Answering, in_slices
from kafkalite.core.pending import Pending
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.cluster import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from kafkalite.core.replicas.partition import Partition
from kafkalite.core.types import RequestContext
from kafkalite.errors import ErrorCode, StorageError

if TYPE_CHECKING:
    from kafkalite.core.broker.broker import Broker

PARTITIONS_PER_SLICE: Final = 1_000  # each takes some 2 us


@handles(ApiKey.DESCRIBE_LOG_DIRS, versions=(0, 4))
def describe_log_dirs(
    broker: Broker, request: DescribeLogDirsRequest, context: RequestContext
) -> DescribeLogDirsResponse | Pending[DescribeLogDirsResponse]:
    """Returns the data directory with the given partitions, or with all."""
    slices = _slices(broker, request)
    answer = in_slices(broker, ApiKey.DESCRIBE_LOG_DIRS, context, slices)
    return cast("DescribeLogDirsResponse | Pending[DescribeLogDirsResponse]", answer)


def _slices(broker: Broker, request: DescribeLogDirsRequest) -> Answering:
    topics: dict[str, list[DescribeLogDirsPartition]] = {}
    for count, partition in enumerate(_wanted(broker, request), start=1):
        if not count % PARTITIONS_PER_SLICE:
            yield
        topic, index = partition.topic_partition
        size = partition.log.size_bytes
        told = DescribeLogDirsPartition(index, size, offset_lag=0, is_future_key=False)
        topics.setdefault(topic, []).append(told)
    described = tuple(DescribeLogDirsTopic(name, tuple(each)) for name, each in topics.items())
    location = broker.logs.location
    try:
        total, usable = broker.logs.capacity()
    except StorageError as error:
        broker.note(str(error))
        failed = DescribeLogDirsResult(ErrorCode.KAFKA_STORAGE_ERROR, location)
        return DescribeLogDirsResponse(results=(failed,))
    result = DescribeLogDirsResult(ErrorCode.NONE, location, described, total, usable)
    return DescribeLogDirsResponse(results=(result,))


def _wanted(broker: Broker, request: DescribeLogDirsRequest) -> list[Partition]:
    held = [partition for topic in broker.topics_held() for partition in topic]
    if request.topics is None:
        return held
    named = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    return [partition for partition in held if partition.topic_partition in named]
