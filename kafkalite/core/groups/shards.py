"""The group coordinators of this broker, one for each partition of `__consumer_offsets`.    [D]

Owns   which settings of the broker a group's machine goes by.
Source apache/kafka `GroupCoordinatorConfig`.
"""

from __future__ import annotations

from random import Random

from kafkalite.core.cluster.internal_topics import OFFSETS_TOPIC
from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.coordinators.runtime import Coordinators, Host
from kafkalite.core.groups.coordinator import GroupCoordinator
from kafkalite.core.groups.group import GroupConfig
from kafkalite.core.groups.offsets import OffsetsConfig
from kafkalite.core.protocol.offsets import OffsetFetchRequest

GroupCoordinators = Coordinators[GroupCoordinator]


def group_coordinators(host: Host, config: BrokerConfig, random: Random) -> GroupCoordinators:
    """All coordinators of groups that this broker runs, none yet."""
    group_config = GroupConfig(
        group_min_session_timeout_ms=config["group.min.session.timeout.ms"],
        group_max_session_timeout_ms=config["group.max.session.timeout.ms"],
        group_initial_rebalance_delay_ms=config["group.initial.rebalance.delay.ms"],
        group_max_size=config["group.max.size"],
    )
    offsets_config = OffsetsConfig(
        offset_metadata_max_bytes=config["offset.metadata.max.bytes"],
        offsets_retention_ms=config["offsets.retention.minutes"] * 60_000,
        offsets_retention_check_interval_ms=config["offsets.retention.check.interval.ms"],
    )
    return Coordinators(
        host,
        OFFSETS_TOPIC,
        lambda: GroupCoordinator(random, group_config, offsets_config),
        commit_wait_ms=config["offsets.commit.timeout.ms"],
        certain={OffsetFetchRequest: lambda asked: asked.require_stable},  # exactly once
    )
