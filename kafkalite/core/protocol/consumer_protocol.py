"""The consumer protocol: what group members say to one another through the coordinator.   [P]

The bytes are a version, then the value in that version (`codec.encode_with_version`). A version
from a newer client is read as the last one known (`codec.decode_with_version`, `accept_newer`).

Source: ConsumerProtocolSubscription.json, ConsumerProtocolAssignment.json.
  v1 owned_partitions (KIP-429); v2 generation_id (KIP-792); v3 rack_id (KIP-881).
"""

from __future__ import annotations

from typing import Annotated

from kafkalite.core.protocol.codec import schema, struct
from kafkalite.core.protocol.primitives import Bytes, Int32, Since, String


@struct
class TopicPartitions:
    """Partitions of one topic."""

    topic: String
    partitions: tuple[Int32, ...]


@schema(versions=(0, 3))
class ConsumerProtocolSubscription:
    """A consumer's message to the group's leader when it joins."""

    topics: tuple[String, ...]
    user_data: Bytes | None = None
    owned_partitions: Annotated[tuple[TopicPartitions, ...], Since(1)] = ()
    generation_id: Annotated[Int32, Since(2)] = -1
    rack_id: Annotated[String | None, Since(3)] = None


@schema(versions=(0, 3))
class ConsumerProtocolAssignment:
    """The partitions that the group's leader assigned to a consumer."""

    assigned_partitions: tuple[TopicPartitions, ...]
    user_data: Bytes | None = None
