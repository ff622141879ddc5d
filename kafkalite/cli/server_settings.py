"""The settings of `kafkalite server start`: those of a file, overridden by the flags.      [IO]

Owns   the list of settings that --listen replaces, and the file and line of each setting.
Fails  with ConfigError naming the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kafkalite.core.config.listeners import ADVERTISED, INTER_BROKER, PLAINTEXT
from kafkalite.core.config.properties import Property, properties
from kafkalite.core.config.security import OF_AN_AUTHORIZER
from kafkalite.core.config.settings import BROKER_KEYS, BrokerConfig, ConfigType, split_known
from kafkalite.core.nearest import did_you_mean, nearest
from kafkalite.errors import ConfigError

LOG_DIRECTORIES: Final = frozenset({"log.dirs", "log.dir"})
SECRET: Final = re.compile(r"pass|secret|credential|token|jaas|\bkey\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Given:
    """Settings; `notes` are lines for the operator about ignored settings."""

    values: Mapping[str, str]
    file: Path | None = None
    places: Mapping[str, str] = field(default_factory=dict)  # of values that the file decides
    notes: tuple[str, ...] = ()

    @property
    def log_dir(self) -> Path | None:
        """The directory of the log in the settings; None if they have none."""
        if not self.values.keys() & LOG_DIRECTORIES:
            return None
        first, *others = BrokerConfig.parse(self.values).log_dirs
        if others:
            raise ConfigError(f"log.dirs names {len(others) + 1} directories; give one of them")
        return Path(first)

    def located(self, error: ConfigError) -> ConfigError:
        """The error, with the file's line if a setting of the file is at fault."""
        place = self.places.get(error.setting)
        if place is None:
            return error
        return ConfigError(f"{place}: {error}", setting=error.setting)


def read_settings(file: Path | None, listen: str | None, flags: Mapping[str, str]) -> Given:
    """The settings in `file`, without those that `listen` or `flags` override.

    A file may have settings that Kafka does not know, a plugin's for example: these are noted.
    """
    if file is None:
        return Given(flags)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--config {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--config {file}: not text in UTF-8: {error}") from error
    written = {found.name: found for found in properties(text)}
    known, unknown = split_known({name: found.value for name, found in written.items()})
    notes = [f"{_place(file, written[name])}: {_why_ignored(name)}" for name in unknown]
    for name in _replaced(known, listen) if listen is not None else ():
        value = known.pop(name)
        notes.append(
            f"{file}: {name} {value} is of another listener than --listen {listen}, left out; "
            f"--override {name}=… sets it"
        )
    decided = {name: _place(file, written[name]) for name in written if name not in flags}
    if listen is not None:
        decided.pop("listeners", None)
    return Given({**known, **flags}, file, decided, tuple(notes))


def _why_ignored(name: str) -> str:
    if name in OF_AN_AUTHORIZER:
        return "read only by an authorizer, and there is none: ignored"
    return f"not a setting of brokers, ignored{did_you_mean(name, BROKER_KEYS)}"


def _place(file: Path, found: Property) -> str:
    """The file, the line, and what stands there, without the value of a password."""
    text = f"{found.name}=(hidden)" if _may_be_secret(found.name) else found.text
    return f"{file}:{found.line}, '{text}'"


def _may_be_secret(name: str) -> bool:
    """Whether the setting, or the known setting with the nearest name, holds a password."""
    if SECRET.search(name):
        return True
    meant = BROKER_KEYS.get(name if name in BROKER_KEYS else nearest(name, BROKER_KEYS) or "")
    return meant is not None and meant.type is ConfigType.PASSWORD


def _replaced(known: Mapping[str, str], listen: str) -> list[str]:
    """The settings of a file that do not go with --listen: clients must not be sent to a port, or
    by a name, that only the file speaks of."""
    names, ports = _names_and_ports(listen)
    told, told_ports = _names_and_ports(known.get(ADVERTISED, ""))
    controllers, _ = _names_and_ports(known.get("controller.listener.names", ""), "://")
    replaced = []
    if told and not (told - controllers <= names and told_ports & ports):
        replaced.append(ADVERTISED)
    if INTER_BROKER in known and known[INTER_BROKER].upper() not in names:
        replaced.append(INTER_BROKER)
    return replaced


def _names_and_ports(listeners: str, end: str = "") -> tuple[set[str], set[str]]:
    """The names in capitals, and the ports as they are written."""
    entries = [f"{text.strip()}{end}".rpartition("://") for text in listeners.split(",") if text]
    names = {name.strip().upper() if scheme else PLAINTEXT for name, scheme, _ in entries}
    return names, {address.rpartition(":")[2] for _, _, address in entries}
