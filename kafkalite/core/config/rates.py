"""The rates of replication: settings that exist only while a broker runs.                   [P]

Apache Kafka does not describe them among a broker's settings before they are set, and neither does
this broker. They are made for one broker, or for all.

Owns   their names.
Fails  with ConfigError, in Kafka's words.
Source KIP-73; apache/kafka `QuotaConfig`, `DynamicConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kafkalite.errors import ConfigError

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
RATES: Final = (LEADER_RATE, FOLLOWER_RATE)


def check_rates(configs: Mapping[str, str]) -> None:
    """Refuses a rate that is no number of bytes a second."""
    for name in RATES:
        text = configs.get(name)
        if text is None:
            continue
        words = f"Invalid value {text} for configuration {name}"
        try:
            number = int(text)
        except ValueError:
            raise ConfigError(f"{words}: Not a number of type LONG") from None
        if number < 0:
            raise ConfigError(f"{words}: Value must be at least 0")
