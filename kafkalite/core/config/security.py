"""Settings that ask for a protection which is not there: with one of them no broker starts.   [P]

A broker that ran on would stand open to those whom its owner meant to keep out. Most of Kafka's
security settings need no such refusal, as they protect nothing by themselves:

    a listener that speaks SSL or SASL_*     refused by `listeners`
    ssl.*, sasl.*, listener.name.X.ssl.* …   read only for such a listener, and there is none; so
                                             with connections.max.reauth.ms, password.encoder.*,
                                             principal.builder.class, delegation.token.*
    super.users, allow.everyone.if.no.…      read only by an authorizer, and that is refused
    other settings of zookeeper.ssl.*        read only where zookeeper.ssl.client.enable says so
    any setting at its default, or empty     asks for nothing

Owns   the names that are refused, and what may be done instead.
Fails  with ConfigError naming setting and value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from kafkalite.core.config.keys import BROKER_KEYS
from kafkalite.errors import ConfigError

INTER_BROKER_PROTOCOL: Final = "security.inter.broker.protocol"
OF_ONE_LISTENER: Final = "listener.name."

_NO_JAVA: Final = "kafkalite runs no Java class, so nothing would be checked. Remove the setting"
_NO_RATE: Final = (
    "kafkalite does not limit how fast connections come. Remove the setting; "
    "max.connections.per.ip and max.connections limit how many there are"
)

REFUSED: Final[Mapping[str, str]] = {
    "authorizer.class.name": (
        "kafkalite has no ACLs: a client that reaches a listener may do anything. Remove the "
        "setting, and let the network decide who reaches the listeners"
    ),
    INTER_BROKER_PROTOCOL: "kafkalite speaks only PLAINTEXT. Remove the setting",
    "alter.config.policy.class.name": _NO_JAVA,
    "create.topic.policy.class.name": _NO_JAVA,
    "client.quota.callback.class": f"there are no quotas, and {_NO_JAVA}",
    "config.providers": (
        "kafkalite asks no provider: a value such as ${file:…} would be taken as it stands. "
        "Write the values themselves, and remove the setting"
    ),
    "max.connection.creation.rate": _NO_RATE,
    "zookeeper.set.acl": (
        "kafkalite writes to ZooKeeper without ACLs. Remove the setting, and let the network "
        "decide who reaches ZooKeeper"
    ),
    "zookeeper.ssl.client.enable": (
        "kafkalite speaks to ZooKeeper without TLS. Remove the setting, and name a port of "
        "ZooKeeper without TLS"
    ),
}

# No settings of a broker, but of the authorizers that Kafka comes with.
OF_AN_AUTHORIZER: Final = frozenset({"super.users", "allow.everyone.if.no.acl.found"})

# Of one listener, after its name.
REFUSED_OF_A_LISTENER: Final[Mapping[str, str]] = {
    "max.connections": (
        "kafkalite counts the connections of all listeners together. Remove the setting; "
        "max.connections limits their number"
    ),
    "max.connection.creation.rate": _NO_RATE,
}


def check_security(settings: Mapping[str, str], listeners: Collection[str]) -> None:
    """ConfigError if settings of a broker ask for a protection that is not there; `listeners` are
    the names of those that it has."""
    for name, text in settings.items():
        _check(name, text, listeners)


def _check(name: str, text: str, listeners: Collection[str]) -> None:
    why = REFUSED.get(name)
    if why is not None:
        key = BROKER_KEYS[name]
        asks = key.parse(text) not in (key.default, "", ())
    else:
        why, asks = _of_one_listener(name, listeners), True
    if why is not None and asks:
        raise ConfigError(f"{name}={text}: {why}", setting=name)


def _of_one_listener(name: str, listeners: Collection[str]) -> str | None:
    """Why a setting of one listener is refused; None if it is not, or is of no listener of ours."""
    listener, _, rest = name.removeprefix(OF_ONE_LISTENER).partition(".")
    if not name.startswith(OF_ONE_LISTENER) or listener.upper() not in listeners:
        return None
    return REFUSED_OF_A_LISTENER.get(rest)
