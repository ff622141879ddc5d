"""Addresses: how settings write them, and how answers show them to clients.                [P]

    HOST:PORT   [IPV6]:PORT   :PORT   PLAINTEXT://HOST:PORT   NAME://HOST:PORT (mapped to PLAINTEXT)

Fails  with ConfigError naming the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kafkalite.errors import ConfigError

PLAINTEXT = "PLAINTEXT"
EVERYWHERE = ("", "0.0.0.0", "::")


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


def client_listener(
    listeners: Sequence[str], protocols: str = "", controller_names: Sequence[str] = ()
) -> Address:
    """The one address for clients among `listeners`; those of Kafka's controllers are left out."""
    others = [text for text in listeners if text.partition("://")[0] not in controller_names]
    if len(others) != 1:
        raise ConfigError(f"listeners '{','.join(others)}': exactly one is supported")
    return parse_address(others[0], protocols)


def parse_address(text: str, protocols: str = "") -> Address:
    """The address in `text`; `protocols` is listener.security.protocol.map."""
    name, scheme, rest = text.strip().rpartition("://")
    if scheme and _protocol(name, protocols) != PLAINTEXT:
        raise ConfigError(f"listener '{text}': only {PLAINTEXT} is supported")
    host, colon, port = rest.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"listener '{text}': an IPv6 address needs brackets")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"listener '{text}': expected HOST:PORT")
    return Address(host, int(port))


def _protocol(name: str, protocols: str) -> str:
    """The security protocol that a listener's name stands for; its own name if nothing says."""
    pairs = (pair.partition(":") for pair in protocols.split(","))
    named = {listener.strip().upper(): protocol.strip() for listener, _, protocol in pairs}
    return named.get(name.strip().upper(), name.strip()).upper()
