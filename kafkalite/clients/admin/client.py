"""The admin client: topics, settings, groups, transactions, brokers: asked about and changed. [IO]

    async with Admin("127.0.0.1:9092") as admin:
        await admin.create_topics([NewTopic("orders", 4)])

Owns   the names that users import; each family of calls has a room of its own, `admin_*`.
Never  repeats a change that a broker may have made, unless the broker said that it did not.
Fails  with ApiError for the first topic, group or resource refused, naming it and the broker's
       reason.
"""

from __future__ import annotations

from kafkalite.clients.admin.cluster import (
    ClusterCalls,
    ClusterInfo,
    ElectionType,
    LogDirInfo,
    Reassignment,
    ReplicaInfo,
)
from kafkalite.clients.admin.configs import (
    EVERY_BROKER,
    ConfigCalls,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    ResourceType,
)
from kafkalite.clients.admin.groups import GroupCalls, GroupInfo, GroupListing, GroupMemberInfo
from kafkalite.clients.admin.topics import (
    BROKER_DEFAULT,
    HIGH_WATERMARK,
    MAX_TIMESTAMP,
    NewTopic,
    TopicCalls,
)
from kafkalite.clients.admin.transactions import (
    ProducerInfo,
    TransactionCalls,
    TransactionInfo,
    TransactionListing,
)

__all__ = [
    "BROKER_DEFAULT",
    "EVERY_BROKER",
    "HIGH_WATERMARK",
    "MAX_TIMESTAMP",
    "Admin",
    "ClusterInfo",
    "ConfigEntry",
    "ConfigResource",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigType",
    "ElectionType",
    "GroupInfo",
    "GroupListing",
    "GroupMemberInfo",
    "LogDirInfo",
    "NewTopic",
    "ProducerInfo",
    "Reassignment",
    "ReplicaInfo",
    "ResourceType",
    "TransactionInfo",
    "TransactionListing",
]


class Admin(TopicCalls, ConfigCalls, GroupCalls, TransactionCalls, ClusterCalls):
    """Asks about a cluster and changes it. Use it as an async context manager.

    `client` is a Client to share, or bootstrap servers.

        import asyncio
        from kafkalite.clients import Admin, NewTopic

        async def main() -> None:
            async with Admin("127.0.0.1:9092") as admin:
                await admin.create_topics([NewTopic("orders", 4)])
                print(await admin.list_topics())

        asyncio.run(main())
    """
