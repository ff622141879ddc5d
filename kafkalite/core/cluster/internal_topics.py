"""The topics in which coordinators keep their state, as Kafka makes them.                  [P]

Owns   their names and settings.
Source KIP-115; apache/kafka `AutoTopicCreationManager`,
       `GroupCoordinator.groupMetadataTopicConfigs`,
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


def creatable(name: str, config: BrokerConfig, *, is_alone: bool) -> CreatableTopic:
    """The request that creates `name` on demand: a topic with the broker's defaults, or an internal
    one. In a cluster it has the replicas that the settings name, or is refused while there are too
    few brokers (KIP-115); on a broker that stands alone, one."""
    if name == OFFSETS_TOPIC:
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config["offsets.topic.segment.bytes"]),
        }
        return _internal(name, "offsets.topic", configs, config, is_alone=is_alone)
    if name == TRANSACTIONS_TOPIC:
        min_isr = 1 if is_alone else config["transaction.state.log.min.isr"]
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(min_isr),
            "segment.bytes": str(config["transaction.state.log.segment.bytes"]),
            "unclean.leader.election.enable": "false",
        }
        return _internal(name, "transaction.state.log", configs, config, is_alone=is_alone)
    return CreatableTopic(name, BROKER_DEFAULT, BROKER_DEFAULT, (), ())


def _internal(
    name: str, prefix: str, configs: dict[str, str], config: BrokerConfig, *, is_alone: bool
) -> CreatableTopic:
    replicas = 1 if is_alone else int(config[f"{prefix}.replication.factor"])
    settings = tuple(CreatableTopicConfig(key, value) for key, value in configs.items())
    return CreatableTopic(name, config[f"{prefix}.num.partitions"], replicas, (), settings)
