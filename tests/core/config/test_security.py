"""Settings that ask for a protection which is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkalite.core.config.keys import BROKER_KEYS
from kafkalite.core.config.security import REFUSED, REFUSED_OF_A_LISTENER, check_security
from kafkalite.core.config.settings import parse_properties, split_known, to_text
from kafkalite.errors import ConfigError

GOLDEN = Path(__file__).parent.parent / "golden"
LISTENERS = ("INTERNAL", "EXTERNAL")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
        ("security.inter.broker.protocol", "SASL_SSL"),
        ("create.topic.policy.class.name", "a.Policy"),
        ("alter.config.policy.class.name", "a.Policy"),
        ("client.quota.callback.class", "a.Quota"),
        ("config.providers", "file"),
        ("max.connection.creation.rate", "100"),
        ("zookeeper.set.acl", "true"),
        ("zookeeper.ssl.client.enable", "true"),
        ("listener.name.external.max.connections", "10"),
        ("listener.name.internal.max.connection.creation.rate", "10"),
    ],
)
def test_a_protection_that_is_not_there_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_security({"num.partitions": "3", name: value}, LISTENERS)
    assert str(refused.value).startswith(f"{name}={value}: ")
    assert "Remove the setting" in str(refused.value) or "remove the setting" in str(refused.value)
    assert refused.value.setting == name


def test_every_refusal_is_tried_above() -> None:
    (marks,) = test_a_protection_that_is_not_there_is_refused_by_name.pytestmark  # type: ignore
    tried = {name for name, _ in marks.args[1]}
    assert REFUSED.keys() <= tried
    assert {name.split(".", 3)[3] for name in tried - REFUSED.keys()} == set(REFUSED_OF_A_LISTENER)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_asks_for_nothing_is_let_through(name: str) -> None:
    default = to_text(BROKER_KEYS[name].default)
    check_security({name: default or ""}, LISTENERS)


def test_what_only_listeners_with_tls_or_sasl_would_read_is_let_through() -> None:
    check_security(
        {
            "ssl.client.auth": "required",
            "ssl.keystore.location": "/x",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "connections.max.reauth.ms": "1000",
            "principal.builder.class": "a.Builder",
            "password.encoder.secret": "s",
            "listener.name.external.ssl.keystore.location": "/x",
            "listener.name.external.plain.sasl.jaas.config": "x",
            "listener.name.elsewhere.max.connections": "10",
        },
        LISTENERS,
    )


@pytest.mark.parametrize("release", ["3.9", "4"])
def test_the_server_properties_that_kafka_comes_with_ask_for_none(release: str) -> None:
    text = (GOLDEN / f"server_{release}.properties").read_text()
    check_security(split_known(parse_properties(text))[0], ("PLAINTEXT",))
