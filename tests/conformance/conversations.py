"""All conversations that two brokers are compared by."""

from __future__ import annotations

from collections.abc import Callable

import questions_configs as configs
import questions_groups as groups
import questions_records as records
import questions_topics as topics
import questions_transactions as transactions
from asking import Talk

CONVERSATIONS: list[Callable[[Talk], None]] = [
    topics.creating,
    topics.deleting,
    topics.widening,
    topics.describing,
    topics.moving,
    records.producing,
    records.producing_as_configured,
    records.producing_in_sequence,
    records.fetching,
    records.fetching_in_sessions,
    records.looking_up,
    records.looking_up_segments,
    records.deleting_records,
    groups.finding,
    groups.living,
    groups.intruding,
    groups.staying,
    groups.committing,
    transactions.beginning,
    transactions.adding,
    transactions.committing_records,
    transactions.committing_offsets,
    transactions.fencing,
    configs.asking_for_settings,
    configs.changing_settings,
    configs.replacing_settings,
    configs.changing_a_broker,
]
