"""Addresses in settings: where a broker listens, and which addresses it tells clients.     [P]

    listeners             INTERNAL://0.0.0.0:9092,EXTERNAL://:9093      NAME://HOST:PORT
    advertised.listeners  INTERNAL://kafka:9092,EXTERNAL://far.example:9093

A client is told the address that is advertised under the name of the listener by which it came in.
A name stands for a security protocol (`listener.security.protocol.map`); only PLAINTEXT is spoken
here. An address without a name, HOST:PORT, is that of the listener PLAINTEXT. Listeners of Kafka's
controllers are left out.

Owns   what of these settings goes together.
Fails  with ConfigError naming setting and entry; never by speaking PLAINTEXT where TLS was asked.
Source apache/kafka 3.9 `KafkaConfig.validateValues`, `EndPoint`; KIP-103, KIP-797.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalite.core.config.security import INTER_BROKER_PROTOCOL
from kafkalite.errors import ConfigError

if TYPE_CHECKING:
    from kafkalite.core.config.settings import BrokerConfig

PLAINTEXT: Final = "PLAINTEXT"
SECURITY_PROTOCOLS: Final = (PLAINTEXT, "SSL", "SASL_PLAINTEXT", "SASL_SSL")
EVERYWHERE: Final = ("", "0.0.0.0", "::")

LISTENERS: Final = "listeners"
ADVERTISED: Final = "advertised.listeners"
PROTOCOL_MAP: Final = "listener.security.protocol.map"
INTER_BROKER: Final = "inter.broker.listener.name"


class Address(NamedTuple):
    """A host, empty for all of this machine's addresses, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_everywhere(self) -> bool:
        """Whether it stands for all of this machine's addresses."""
        return self.host in EVERYWHERE

    def excludes(self, other: Address) -> bool:
        """Whether a socket here leaves no room for one at `other`."""
        if self.port != other.port or not self.port:
            return False
        return self.host == other.host or self.is_everywhere or other.is_everywhere


@dataclass(frozen=True, slots=True)
class Listeners:
    """The listeners' addresses by name, in the order of the settings, and the advertised ones.

    `advertised` is empty if it is not set: clients then get the listener's own address. Brokers,
    and everything else in the broker's process, use the listener `inter_broker`.
    """

    wanted: Mapping[str, Address]
    advertised: Mapping[str, Address]
    inter_broker: str


def read_listeners(config: BrokerConfig, default: str) -> Listeners:
    """The listeners of a broker; `default` counts where the settings name none."""
    protocols = {PLAINTEXT: PLAINTEXT, **_protocol_map(config[PROTOCOL_MAP])}
    controllers = {name.upper() for name in config["controller.listener.names"] or ()}
    entries = config[LISTENERS] if LISTENERS in config.static else (default,)
    wanted = _by_name(LISTENERS, entries, controllers)
    if not wanted:
        raise _wrong(LISTENERS, ",".join(entries), "there is no listener for clients")
    for name, address in wanted.items():
        _check_protocol(f"{name}://{address}", protocols.get(name))
    _check_room(wanted)
    advertised = _by_name(ADVERTISED, config[ADVERTISED] or (), controllers)
    for name, address in advertised.items():
        _check_advertised(f"{name}://{address}", name, address, wanted)
    inter_broker = _inter_broker(config, advertised or wanted)
    return Listeners(wanted, advertised, inter_broker)


def listener_names(config: BrokerConfig) -> frozenset[str]:
    """The names of a broker's listeners."""
    return frozenset(name for name, _ in _named(config[LISTENERS]))


def parse_address(text: str) -> Address:
    """The address in `text`, HOST:PORT."""
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"listener '{text}': an IPv6 address needs brackets, [HOST]:PORT")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"listener '{text}': expected HOST:PORT")
    return Address(host, int(port))


def _by_name(setting: str, entries: Iterable[str], left_out: Container[str]) -> dict[str, Address]:
    """The addresses of a setting's entries, by their names in capitals."""
    found: dict[str, Address] = {}
    for name, text in _named(entries):
        if name in left_out:
            continue
        if not name:
            raise _wrong(setting, text, "a listener needs a name: NAME://HOST:PORT")
        if name in found:
            raise _wrong(setting, text, f"there are two listeners of the name {name}")
        try:
            found[name] = parse_address(text.rpartition("://")[2])
        except ConfigError as error:
            raise ConfigError(f"{setting}: {error}", setting=setting) from error
    return found


def _named(entries: Iterable[str]) -> Iterator[tuple[str, str]]:
    for text in entries:
        name, scheme, _ = text.strip().rpartition("://")
        yield (name.strip().upper() if scheme else PLAINTEXT), text.strip()


def _protocol_map(text: str) -> dict[str, str]:
    """Which security protocol each name stands for."""
    protocols: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, _, protocol = (part.strip().upper() for part in pair.rpartition(":"))
        if not name or protocol not in SECURITY_PROTOCOLS:
            known = ", ".join(SECURITY_PROTOCOLS)
            raise _wrong(PROTOCOL_MAP, pair, f"expected NAME:PROTOCOL, one of {known}")
        protocols[name] = protocol
    return protocols


def _check_protocol(entry: str, protocol: str | None) -> None:
    """ConfigError unless the listener is to speak PLAINTEXT."""
    if protocol is None:
        raise _wrong(LISTENERS, entry, f"{PROTOCOL_MAP} does not say what the name stands for")
    if protocol != PLAINTEXT:
        raise _wrong(
            LISTENERS,
            entry,
            f"{PROTOCOL_MAP} has it speak {protocol}, and kafkalite speaks only {PLAINTEXT}. Map "
            f"the name to {PLAINTEXT} there and let a proxy or the network protect the port, or "
            "leave the listener out",
        )


def _check_room(wanted: Mapping[str, Address]) -> None:
    taken: list[tuple[str, Address]] = []
    for name, address in wanted.items():
        for other, at in taken:
            if address.excludes(at):
                raise _wrong(
                    LISTENERS, f"{name}://{address}", f"port {at.port} is that of {other}://{at}"
                )
        taken.append((name, address))


def _check_advertised(
    entry: str, name: str, address: Address, wanted: Mapping[str, Address]
) -> None:
    if name not in wanted:
        raise _wrong(ADVERTISED, entry, f"{LISTENERS} has only {', '.join(wanted)}")
    if address.host and address.is_everywhere:
        raise _wrong(
            ADVERTISED, entry, f"{address.host} is no address to connect to; name a host of yours"
        )


def _inter_broker(config: BrokerConfig, addresses: Mapping[str, Address]) -> str:
    """The name of the listener for brokers: the first one where the settings name none."""
    name = config[INTER_BROKER]
    if not name:
        return next(iter(addresses))
    if name.upper() not in addresses:
        raise _wrong(INTER_BROKER, name, f"there is only {', '.join(addresses)}")
    if INTER_BROKER_PROTOCOL in config.static:
        words = f"give either this or {INTER_BROKER_PROTOCOL}, not both"
        raise _wrong(INTER_BROKER, name, words)
    return str(name.upper())


def _wrong(setting: str, value: str, why: str) -> ConfigError:
    return ConfigError(f"{setting} '{value}': {why}", setting=setting)
