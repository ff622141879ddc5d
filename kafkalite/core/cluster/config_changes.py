"""Changes of the settings of topics and brokers: checked, then carried out.                 [P]

    topic T         its own settings
    broker ""       settings of every broker
    broker N        settings of one; they win over those of every broker
    loggers of N    levels; the broker keeps them itself, the controller does not see them

AlterConfigs replaces all of a resource's settings, IncrementalAlterConfigs sets, deletes, appends
to a list or subtracts from it. Either comes as a `ConfigChange`; each stands alone, and is carried
out whole or refused whole.

Fails  with ApiError, in Kafka's code and words.
Source KIP-133, KIP-226, KIP-339; apache/kafka `ConfigurationControlManager`, `ConfigAdminManager`,
       `DynamicThreadPool`, `LogCleaner.validateReconfiguration`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from kafkalite.core.cluster import image as images
from kafkalite.core.cluster.image import ClusterImage, ClusterRecord
from kafkalite.core.cluster.placement import check_name
from kafkalite.core.config.keys import THREADS
from kafkalite.core.config.listeners import listener_names
from kafkalite.core.config.rates import check_rates
from kafkalite.core.config.security import check_security
from kafkalite.core.config.settings import (
    BROKER_KEYS,
    TOPIC_KEYS,
    BrokerConfig,
    ConfigType,
    Value,
    check_dynamic,
    to_text,
)
from kafkalite.core.protocol.configs import ConfigOperation
from kafkalite.errors import ApiError, ConfigError, ErrorCode

TOPIC: Final = 2
BROKER: Final = 4
LOGGERS: Final = 8
EVERY_BROKER: Final = ""


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A change of one resource's settings: operations are (name, operation, value).

    With `replaces` the settings that are not named return to their defaults.
    """

    resource_type: int
    resource_name: str
    operations: tuple[tuple[str, int, str | None], ...]
    replaces: bool = False

    @property
    def names(self) -> list[str]:
        """The settings that are named."""
        return [name for name, _, _ in self.operations]


@dataclass(frozen=True, slots=True)
class ChangeConfigs:
    """A request to the controller. The answer: for each change None, or the ApiError."""

    changes: tuple[ConfigChange, ...]
    validate_only: bool = False


Result = ApiError | None


def in_force(
    static: BrokerConfig, image: ClusterImage, node_id: int
) -> tuple[BrokerConfig, str | None]:
    """The settings of the broker `node_id`, and an error text if those of the image do not fit.

    They were checked when they were made. If the broker's own file has changed since and no longer
    fits, the broker starts without them.
    """
    configs = image.broker_configs
    try:
        dynamic, of_all = configs.get(str(node_id), {}), configs.get(EVERY_BROKER, {})
        return static.with_dynamic(dynamic, of_all), None
    except ConfigError as error:
        return static, str(error)


def resources_named(changes: Iterable[ConfigChange]) -> Counter[tuple[int, str]]:
    """How often each resource is named in a request."""
    return Counter((change.resource_type, change.resource_name) for change in changes)


def refusal(change: ConfigChange, named: Counter[tuple[int, str]], node_id: int) -> Result:
    """Why the broker `node_id`, which a client asked, refuses a change before the controller sees
    it; None if it does not. `named`: how often its request names each resource."""
    try:
        if named[change.resource_type, change.resource_name] > 1:
            _refuse("Each resource must appear at most once.")
        _check_form(change)
        if change.resource_type == BROKER:
            _check_broker_name(change.resource_name, node_id)
        elif change.resource_type == LOGGERS and not change.replaces:
            _check_id(change.resource_name, node_id)
        elif change.resource_type != TOPIC:
            _refuse(f"Unknown resource type {change.resource_type}")
    except ApiError as error:
        return error
    return None


def _check_form(change: ConfigChange) -> None:
    if len(set(change.names)) < len(change.names):
        _refuse("Error due to duplicate config keys")
    nulls = [
        n for n, do, value in change.operations if do != ConfigOperation.DELETE and value is None
    ]
    if nulls:
        _refuse(f"Null value not supported for : {','.join(nulls)}")
    for name, operation, _ in change.operations:
        if operation not in tuple(ConfigOperation):
            _refuse(f"Unknown operation {operation} on {name}")


def _check_broker_name(name: str, node_id: int) -> None:
    if name != EVERY_BROKER:
        _check_id(name, node_id)


def _check_id(name: str, node_id: int) -> None:
    """The number as it is written, too: under "01" settings would be kept and never be in force."""
    if name == str(node_id):
        return
    try:
        int(name)
    except ValueError:
        _refuse(f"Node id must be an integer, but it is: {name}")
    _refuse(f"Unexpected broker id, expected {node_id}, but received {name}")


def carry_out(
    change: ConfigChange, image: ClusterImage, config: BrokerConfig
) -> ClusterRecord | None:
    """The record that brings a checked change about; None if it changes nothing. ApiError."""
    if change.resource_type == TOPIC:
        return _change_topic(change, image, config)
    return _change_broker(change, image, config)


def _change_topic(
    change: ConfigChange, image: ClusterImage, config: BrokerConfig
) -> ClusterRecord | None:
    name = change.resource_name
    if not name:
        _refuse("Default topic resources are not allowed.")
    check_name(name)
    topic = image.topics.get(name)
    if topic is None:
        words = f"The topic '{name}' does not exist."
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, words)
    defaults = config.topic()

    def fallback(key: str) -> Value:
        return defaults[key] if key in TOPIC_KEYS else None

    configs = _changed(change, topic.configs, fallback, ErrorCode.INVALID_CONFIG)
    try:
        config.topic(configs)
    except ConfigError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from error
    if configs == topic.configs:
        return None
    return images.checked(images.topic_record(replace(topic, configs=configs)))


def _change_broker(
    change: ConfigChange, image: ClusterImage, config: BrokerConfig
) -> ClusterRecord | None:
    name = change.resource_name
    current = image.broker_configs.get(name, {})

    def fallback(key: str) -> Value:
        return config[key] if key in BROKER_KEYS else None

    configs = _changed(change, current, fallback, ErrorCode.INVALID_REQUEST)
    try:
        check_dynamic(configs)
        check_security(configs, listener_names(config))
        check_rates(configs)
        if name == EVERY_BROKER:
            _check_threads(config, config.with_dynamic(dynamic_default=configs))
        else:
            _check_threads(config, config.with_dynamic(dynamic=configs))
    except ConfigError as error:
        raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from error
    if configs == current:
        return None
    return images.checked(images.broker_configs_record(name, configs))


def _check_threads(before: BrokerConfig, after: BrokerConfig) -> None:
    for name in THREADS:
        count, current = after[name], before[name]
        if count < current // 2:
            limit = "be at least half"
        elif count > current * 2:
            limit = "not be greater than double"
        else:
            continue
        raise ConfigError(
            f"Dynamic thread count update validation failed for {name}={count}, "
            f"value should {limit} the current value {current}"
        )


def _changed(
    change: ConfigChange,
    current: Mapping[str, str],
    fallback: Callable[[str], Value],
    code: ErrorCode,
) -> dict[str, str]:
    """The resource's settings after the change; `fallback` returns the value of an unset one."""
    configs = {} if change.replaces else dict(current)
    for name, operation, value in change.operations:
        if operation == ConfigOperation.DELETE:
            configs.pop(name, None)
            continue
        assert value is not None, "checked"
        if operation == ConfigOperation.SET:
            configs[name] = value
            continue
        key = (TOPIC_KEYS if change.resource_type == TOPIC else BROKER_KEYS).get(name)
        if key is None or key.type is not ConfigType.LIST:
            what = ConfigOperation(operation).name
            words = f"Can't {what} to key {name} because its type is not LIST."
            raise ApiError(code, words)
        before = configs[name] if name in configs else to_text(fallback(name)) or ""
        configs[name] = _edited(_words(before), operation, _words(value))
    return configs


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")] if text else []


def _edited(before: list[str], operation: int, words: list[str]) -> str:
    """A list with missing words appended, or without the subtracted ones."""
    if operation == ConfigOperation.APPEND:
        return ",".join(dict.fromkeys(before + words))
    gone = set(words)
    return ",".join(word for word in before if word not in gone)


def _refuse(words: str) -> None:
    raise ApiError(ErrorCode.INVALID_REQUEST, words)
