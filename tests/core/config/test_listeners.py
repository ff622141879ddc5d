"""Addresses as settings write them, and which of them go together."""

from __future__ import annotations

import pytest

from kafkalite.core.config.listeners import Address, Listeners, parse_address, read_listeners
from kafkalite.core.config.settings import BrokerConfig
from kafkalite.errors import ConfigError

DEFAULT = "127.0.0.1:9092"
TWO = "INTERNAL://0.0.0.0:9092,EXTERNAL://0.0.0.0:9093"
MAPPED = "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT,CONTROLLER:SSL"


def read(**settings: str) -> Listeners:
    named = {name.replace("_", "."): text for name, text in settings.items()}
    return read_listeners(BrokerConfig.parse(named), DEFAULT)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9092", "127.0.0.1", 9092),
        ("localhost:0", "localhost", 0),
        (":9092", "", 9092),
        ("[::1]:65535", "::1", 65535),
        (" h:1 ", "h", 1),
    ],
)
def test_an_address_reads(text: str, host: str, port: int) -> None:
    assert parse_address(text) == Address(host, port)


@pytest.mark.parametrize(
    "text", ["", "9092", "h:", "h:x", "h:65536", "h:-1", "::1:9092", "h:٣", "a:1,b:2"]
)
def test_an_address_that_does_not_read_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="listener"):
        parse_address(text)
    with pytest.raises(ConfigError, match="^listeners"):
        read(listeners=f"PLAINTEXT://{text}")


def test_an_address_is_written_as_it_is_read() -> None:
    for text in ("127.0.0.1:9092", "[::1]:0"):
        assert str(parse_address(text)) == text


def test_without_settings_the_default_counts() -> None:
    here = Listeners({"PLAINTEXT": Address("127.0.0.1", 9092)}, {}, "PLAINTEXT")
    assert read() == here
    assert read(listeners="plaintext://127.0.0.1:9092") == here
    assert read(listeners="127.0.0.1:9092", listener_security_protocol_map="A:SSL") == here


def test_several_listeners_each_with_an_address_for_its_clients() -> None:
    found = read(
        listeners=f"{TWO},CONTROLLER://:9094",
        advertised_listeners="EXTERNAL://far.example:29093,INTERNAL://kafka:9092",
        listener_security_protocol_map=MAPPED,
        controller_listener_names="CONTROLLER",
        inter_broker_listener_name="external",
    )
    assert found.wanted == {
        "INTERNAL": Address("0.0.0.0", 9092),
        "EXTERNAL": Address("0.0.0.0", 9093),
    }
    assert found.advertised["EXTERNAL"] == Address("far.example", 29093)
    assert found.advertised["INTERNAL"] == Address("kafka", 9092)
    assert found.inter_broker == "EXTERNAL"


def test_an_empty_host_may_be_advertised_and_stands_for_this_machine() -> None:
    advertised = read(advertised_listeners="PLAINTEXT://:9").advertised
    assert advertised == {"PLAINTEXT": Address("", 9)}


def test_a_port_may_be_taken_once_on_each_address() -> None:
    mapped = {"listener_security_protocol_map": "A:PLAINTEXT,B:PLAINTEXT"}
    assert len(read(listeners="A://127.0.0.1:9,B://[::1]:9", **mapped).wanted) == 2
    assert len(read(listeners="A://127.0.0.1:0,B://127.0.0.1:0", **mapped).wanted) == 2
    for hosts in (("h", "h"), ("", "127.0.0.1"), ("127.0.0.1", "0.0.0.0")):
        listeners = f"A://{hosts[0]}:9,B://{hosts[1]}:9"
        with pytest.raises(ConfigError, match=r"'B://.*:9': port 9 is that of A://"):
            read(listeners=listeners, **mapped)


@pytest.mark.parametrize(
    ("settings", "setting", "words"),
    [
        ({"listeners": TWO}, "listeners", "INTERNAL.*listener.security.protocol.map does not say"),
        (
            {"listeners": "SSL://h:1"},
            "listeners",
            "'SSL://h:1'.*speak SSL, and kafkalite speaks only",
        ),
        (
            {
                "listeners": TWO,
                "listener_security_protocol_map": "INTERNAL:PLAINTEXT,EXTERNAL:SASL_SSL",
            },
            "listeners",
            "'EXTERNAL://0.0.0.0:9093'.*SASL_SSL",
        ),
        (
            {"listener_security_protocol_map": "PLAINTEXT:SASL_PLAINTEXT"},
            "listeners",
            "'PLAINTEXT://127.0.0.1:9092'.*SASL_PLAINTEXT",
        ),
        ({"listeners": "PLAINTEXT://a:1,plaintext://b:2"}, "listeners", "two listeners.*PLAINTEXT"),
        ({"listeners": "://a:1"}, "listeners", "needs a name"),
        ({"listeners": ""}, "listeners", "no listener for clients"),
        (
            {"listeners": "C://:1", "controller_listener_names": "C"},
            "listeners",
            "no listener for clients",
        ),
        (
            {"listener_security_protocol_map": "A:TLS"},
            "listener.security.protocol.map",
            "'A:TLS': expected NAME:PROTOCOL",
        ),
        (
            {"advertised_listeners": "EXTERNAL://h:1"},
            "advertised.listeners",
            "'EXTERNAL://h:1': listeners has only PLAINTEXT",
        ),
        (
            {"advertised_listeners": "PLAINTEXT://a:1,PLAINTEXT://b:1"},
            "advertised.listeners",
            "'PLAINTEXT://b:1': there are two listeners",
        ),
        (
            {"advertised_listeners": "PLAINTEXT://0.0.0.0:1"},
            "advertised.listeners",
            "0.0.0.0 is no address to connect to",
        ),
        (
            {"advertised_listeners": "PLAINTEXT://[::]:1"},
            "advertised.listeners",
            ":: is no address to connect to",
        ),
        (
            {"inter_broker_listener_name": "INTERNAL"},
            "inter.broker.listener.name",
            "'INTERNAL': there is only PLAINTEXT",
        ),
        (
            {
                "inter_broker_listener_name": "PLAINTEXT",
                "security_inter_broker_protocol": "PLAINTEXT",
            },
            "inter.broker.listener.name",
            "not both",
        ),
    ],
)
def test_listeners_that_do_not_go_together_are_refused_by_name(
    settings: dict[str, str], setting: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        read(**settings)
    assert refused.value.setting == setting
    assert str(refused.value).startswith(setting)
