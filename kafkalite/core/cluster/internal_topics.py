"""The topics in which coordinators keep their state, as Kafka makes them.                  [P]

Owns   their names and settings.
Source apache/kafka `AutoTopicCreationManager`, `GroupCoordinator.groupMetadataTopicConfigs`,
       `TransactionStateManager.transactionTopicConfigs`.
"""

from __future__ import annotations

from typing import Final

from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.protocol.topics import CreatableTopic, CreatableTopicConfig

BROKER_DEFAULT: Final = -1
OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})


def creatable(name: str, config: BrokerConfig, broker_count: int) -> CreatableTopic:
    """The request that creates `name` on demand: a topic with the broker's defaults, or an internal
    one, with as many replicas as there are brokers for."""
    if name == OFFSETS_TOPIC:
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config["offsets.topic.segment.bytes"]),
        }
        return _internal(name, "offsets.topic", configs, config, broker_count)
    if name == TRANSACTIONS_TOPIC:
        min_isr: int = config["transaction.state.log.min.isr"]
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(min(min_isr, broker_count)),
            "segment.bytes": str(config["transaction.state.log.segment.bytes"]),
            "unclean.leader.election.enable": "false",
        }
        return _internal(name, "transaction.state.log", configs, config, broker_count)
    return CreatableTopic(name, BROKER_DEFAULT, BROKER_DEFAULT, (), ())


def _internal(
    name: str, prefix: str, configs: dict[str, str], config: BrokerConfig, broker_count: int
) -> CreatableTopic:
    replicas = min(int(config[f"{prefix}.replication.factor"]), broker_count)
    settings = tuple(CreatableTopicConfig(key, value) for key, value in configs.items())
    return CreatableTopic(name, config[f"{prefix}.num.partitions"], replicas, (), settings)
