"""ZooKeeper's address: `host:port,host:port/chroot`.                                        [P]

Owns   the form. IPv6 addresses stand in brackets; 2181 is the port where none is given.
Fails  with ConfigError that names the part of the setting zookeeper.connect.
Source Kafka's documentation of `zookeeper.connect`.
"""

from __future__ import annotations

from typing import Final

from kafkalite.core.cluster.coordination import check_path
from kafkalite.errors import ConfigError, CoordinationError

DEFAULT_PORT: Final = "2181"
SETTING: Final = "zookeeper.connect"


def parse_address(address: str) -> tuple[list[tuple[str, int]], str]:
    """The servers, and the path below which everything lies: "" for the root."""
    hosts, _, below = address.partition("/")
    servers = [_server(each.strip(), address) for each in hosts.split(",")]
    chroot = f"/{below.rstrip('/')}" if below.strip("/") else ""
    try:
        check_path(chroot or "/")
    except CoordinationError as error:
        raise ConfigError(f"{SETTING}={address}: {error}", setting=SETTING) from None
    return servers, chroot


def _server(text: str, address: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, DEFAULT_PORT
    is_bracketed = host.startswith("[") and host.endswith("]")
    name = host[1:-1] if is_bracketed else host
    if not name or (":" in name and not is_bracketed) or not _is_port(port):
        raise ConfigError(f"{SETTING}={address}: {text!r} is not HOST:PORT", setting=SETTING)
    return name, int(port)


def _is_port(text: str) -> bool:
    return text.isdecimal() and 0 < int(text) < 65_536
