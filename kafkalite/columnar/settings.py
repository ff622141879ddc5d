"""How a range is read: addresses, isolation, sizes, by the names of Kafka's consumer settings. [P]

Owns   the settings that have a meaning here. A load or a Spark task gets them as data.
Fails  with ConfigError naming the setting: one that is unknown here, or whose value is none of its.
Source Kafka's consumer configs; what the official Spark connector refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from kafkalite.errors import ConfigError

COMMITTED: Final = "read_committed"
ISOLATION_LEVELS: Final = (COMMITTED, "read_uncommitted")


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """Where the log is and how much to ask it for; sizes in bytes, times in ms."""

    bootstrap_servers: str
    client_id: str = "kafkalite-columnar"
    isolation_level: str = COMMITTED
    request_timeout_ms: int = 30_000
    metadata_max_age_ms: int = 300_000
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 52_428_800
    fetch_max_wait_ms: int = 500
    max_partition_fetch_bytes: int = 2 << 20
    check_crcs: bool = True

    @property
    def read_committed(self) -> bool:
        """Whether records of aborted and open transactions stay out."""
        return self.isolation_level == COMMITTED


def _number(text: str) -> int:
    if not text.isdigit():
        raise ValueError("not a number")
    return int(text)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("neither true nor false")
    return text.lower() == "true"


def _isolation(text: str) -> str:
    if text not in ISOLATION_LEVELS:
        raise ValueError(f"not one of {', '.join(ISOLATION_LEVELS)}")
    return text


READS: Final[Mapping[str, Callable[[str], Any]]] = {"int": _number, "bool": _boolean, "str": str}
SETTINGS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    field.name.replace("_", "."): (field.name, READS[str(field.type)])
    for field in fields(ReadSettings)
} | {"isolation.level": ("isolation_level", _isolation)}
WHY_REFUSED: Final[Mapping[str, str]] = {
    "auto.offset.reset": "startingOffsets says where to begin",
    "enable.auto.commit": "offsets are committed with a batch, where there is a group",
    "interceptor.classes": "there are no interceptors",
    "key.deserializer": "key.format says how keys are read",
    "value.deserializer": "value.format says how values are read",
}


def settings_of(given: Mapping[str, str]) -> ReadSettings:
    """The settings from Kafka's names to texts, as `{"bootstrap.servers": "127.0.0.1:9092"}`."""
    if not given.get("bootstrap.servers"):
        raise ConfigError("the setting bootstrap.servers is missing")
    found: dict[str, Any] = {}
    for name, text in given.items():
        if name in WHY_REFUSED:
            raise ConfigError(f"{name} cannot be set: {WHY_REFUSED[name]}")
        if name == "security.protocol" and text == "PLAINTEXT":
            continue
        if name not in SETTINGS:
            raise ConfigError(f"{name} is not a setting of this client")
        field, read = SETTINGS[name]
        try:
            found[field] = read(text.strip())
        except ValueError as error:
            raise ConfigError(f"{name}: {text!r} is {error}") from error
    return ReadSettings(**found)
