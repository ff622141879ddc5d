"""Addresses as settings write them."""

from __future__ import annotations

import pytest

from kafkalite.core.config.listeners import Address, client_listener, parse_address
from kafkalite.core.config.settings import BROKER_KEYS
from kafkalite.errors import ConfigError

PROTOCOLS = str(BROKER_KEYS["listener.security.protocol.map"].default)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9092", "127.0.0.1", 9092),
        ("localhost:0", "localhost", 0),
        (":9092", "", 9092),
        ("[::1]:65535", "::1", 65535),
        ("PLAINTEXT://0.0.0.0:9092", "0.0.0.0", 9092),
        ("plaintext://h:1", "h", 1),
        ("CLIENTS://h:1", "h", 1),
    ],
)
def test_an_address_reads(text: str, host: str, port: int) -> None:
    assert parse_address(text, PROTOCOLS + ",CLIENTS:PLAINTEXT") == Address(host, port)


@pytest.mark.parametrize(
    "text",
    ["", "9092", "h:", "h:x", "h:65536", "h:-1", "::1:9092", "SSL://h:1", "OTHER://h:1", "h:٣",
     "PLAINTEXT://a:1,PLAINTEXT://b:2"],
)  # fmt: skip
def test_what_is_no_address_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="listener"):
        parse_address(text, PROTOCOLS)


def test_an_address_is_written_as_it_is_read() -> None:
    for text in ("127.0.0.1:9092", "[::1]:0"):
        assert str(parse_address(text)) == text


def test_the_listener_for_clients_is_found_beside_kafkas_controllers() -> None:
    listeners = ("PLAINTEXT://:9092", "CONTROLLER://:9093")
    assert client_listener(listeners, PROTOCOLS, ("CONTROLLER",)) == Address("", 9092)
    for wrong in (listeners, ("CONTROLLER://:9093",), ()):
        names = () if wrong is listeners else ("CONTROLLER",)
        with pytest.raises(ConfigError, match="exactly one is supported"):
            client_listener(wrong, PROTOCOLS, names)
