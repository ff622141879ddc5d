"""Producer, consumer and admin client of a cluster, for asyncio; blocking ones in `sync`.  [IO]

    from kafkalite.clients import Admin, Consumer, NewTopic, Producer

Users import these names. A name's module is loaded at the first access, so a program pays only
for the clients that it uses.

Owns   the public names.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kafkalite.clients.admin.client import Admin
    from kafkalite.clients.admin.topics import NewTopic
    from kafkalite.clients.cluster import Client
    from kafkalite.clients.consumer.consumer import Consumer
    from kafkalite.clients.consumer.fetcher import OffsetAndTimestamp
    from kafkalite.clients.consumer.member import OffsetAndMetadata
    from kafkalite.clients.consumer.membership import GroupMetadata
    from kafkalite.clients.producer.producer import Producer, RecordMetadata
    from kafkalite.clients.producer.transactional import TransactionalProducer
    from kafkalite.core.types import Columns, TopicPartition

__all__ = [
    "Admin",
    "Client",
    "Columns",
    "Consumer",
    "GroupMetadata",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Producer",
    "RecordMetadata",
    "TopicPartition",
    "TransactionalProducer",
]

HOMES: Final = {
    "Admin": "kafkalite.clients.admin.client",
    "Client": "kafkalite.clients.cluster",
    "Columns": "kafkalite.core.types",
    "Consumer": "kafkalite.clients.consumer.consumer",
    "GroupMetadata": "kafkalite.clients.consumer.membership",
    "NewTopic": "kafkalite.clients.admin.topics",
    "OffsetAndMetadata": "kafkalite.clients.consumer.member",
    "OffsetAndTimestamp": "kafkalite.clients.consumer.fetcher",
    "Producer": "kafkalite.clients.producer.producer",
    "RecordMetadata": "kafkalite.clients.producer.producer",
    "TopicPartition": "kafkalite.core.types",
    "TransactionalProducer": "kafkalite.clients.producer.transactional",
}

if not TYPE_CHECKING:  # a type checker is not to believe that the package has every name

    def __getattr__(name: str) -> Any:
        """Loads the module of a public name, the first time that it is asked for."""
        home = HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found = getattr(import_module(home), name)
        return found
