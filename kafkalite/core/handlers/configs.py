"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: settings of topics and brokers.   [P]

A broker answers for itself, for the levels of its loggers and, under the empty name, for the
settings made for all brokers.

Source KIP-133, KIP-226 (synonyms), KIP-339 (incremental), KIP-412 (loggers), KIP-569 (types and
       documentation).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

from kafkalite.core.broker.steering import peer_of
from kafkalite.core.cluster.config_changes import (
    BROKER,
    EVERY_BROKER,
    LOGGERS,
    TOPIC,
    ChangeConfigs,
    ConfigChange,
    Result,
    refusal,
    resources_named,
)
from kafkalite.core.cluster.placement import check_name
from kafkalite.core.config.settings import ConfigEntry, ConfigSource
from kafkalite.core.handlers.routes import handles
from kafkalite.core.handlers.slices import ENTRIES_PER_SLICE, Answered, Answering, in_slices
from kafkalite.core.pending import Pending
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    ConfigOperation,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kafkalite.core.types import RequestContext
from kafkalite.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from kafkalite.core.broker.broker import Broker


@handles(ApiKey.DESCRIBE_CONFIGS, versions=(0, 4))
def describe_configs(
    broker: Broker, request: DescribeConfigsRequest, context: RequestContext
) -> DescribeConfigsResponse | Pending[DescribeConfigsResponse]:
    """Returns the settings of each resource, or an error."""
    answer = in_slices(broker, ApiKey.DESCRIBE_CONFIGS, context, _described(broker, request))
    return cast("DescribeConfigsResponse | Pending[DescribeConfigsResponse]", answer)


def _described(broker: Broker, request: DescribeConfigsRequest) -> Answering:
    results = []
    work = 0
    for resource in {_identity(each): each for each in request.resources}.values():
        if work >= ENTRIES_PER_SLICE:
            work = 0
            yield
        work += 1
        try:
            configs = _configs(broker, resource, request)
        except ApiError as error:
            refusal = DescribeConfigsResult(
                error.error_code, error.words, resource.resource_type, resource.resource_name
            )
            results.append(refusal)
            continue
        work += len(configs)
        results.append(
            DescribeConfigsResult(
                error_message="",
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=configs,
            )
        )
    return DescribeConfigsResponse(results=tuple(results))


def _identity(resource: DescribeConfigsResource) -> tuple[int, str | int]:
    """The identity of a resource: a repeated one is answered once, which bounds the answer."""
    kind, name = resource.resource_type, resource.resource_name
    try:
        return kind, name if kind == TOPIC else int(name)
    except ValueError:
        return kind, name


Configs = tuple[DescribeConfigsResourceResult, ...]


def _configs(
    broker: Broker, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> Configs:
    """The settings asked for, or all."""
    wanted = resource.configuration_keys
    if resource.resource_type == LOGGERS:
        _check_broker_name(resource.resource_name, broker.node_id, "")
        levels = broker.loggers.levels()
        return tuple(_level(name, levels[name]) for name in levels if not wanted or name in wanted)
    return tuple(
        _result(entry, request)
        for entry in _entries(broker, resource)
        if not wanted or entry.key.name in wanted
    )


def _level(name: str, level: str) -> DescribeConfigsResourceResult:
    source = int(ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG)
    return DescribeConfigsResourceResult(
        name, level, read_only=False, config_source=source, documentation=None
    )


def _entries(broker: Broker, resource: DescribeConfigsResource) -> list[ConfigEntry]:
    name = resource.resource_name
    if resource.resource_type == TOPIC:
        check_name(name)
        topic = broker.image.topics.get(name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return broker.topic_config(topic).describe()
    if resource.resource_type != BROKER:
        _refuse(f"Unsupported resource type: {resource.resource_type}")
    if name == EVERY_BROKER:
        return broker.config.describe_default()
    _check_broker_name(name, broker.node_id, " or empty string,")
    return broker.config.describe()


def _check_broker_name(name: str, node_id: int, alternative: str) -> None:
    try:
        wanted = int(name)
    except ValueError:
        _refuse(f"Broker id must be an integer, but it is: {name}")
    if wanted != node_id:
        _refuse(f"Unexpected broker id, expected {node_id}{alternative} but received {wanted}")


def _refuse(words: str) -> NoReturn:
    raise ApiError(ErrorCode.INVALID_REQUEST, words)


def _result(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    hidden = entry.is_sensitive
    synonyms = entry.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=entry.key.name,
        value=None if hidden else entry.value,
        read_only=entry.is_read_only,
        is_default=entry.told_source is ConfigSource.DEFAULT_CONFIG,
        config_source=int(entry.told_source),
        is_sensitive=hidden,
        synonyms=tuple(
            DescribeConfigsSynonym(each.name, None if hidden else each.value, int(each.source))
            for each in synonyms
        ),
        config_type=int(entry.key.type),
        documentation=entry.key.doc if request.include_documentation else None,
    )


@handles(ApiKey.ALTER_CONFIGS, versions=(0, 2))
def alter_configs(
    broker: Broker, request: AlterConfigsRequest, context: RequestContext
) -> AlterConfigsResponse | Pending[AlterConfigsResponse]:
    """Answered once the settings are durable and in force."""
    changes = (
        ConfigChange(
            resource.resource_type,
            resource.resource_name,
            tuple((config.name, ConfigOperation.SET, config.value) for config in resource.configs),
            replaces=True,
        )
        for resource in request.resources
    )
    asked = _Asked(peer_of(context.client_id), request.validate_only)
    slices = _changed(broker, changes, AlterConfigsResponse, asked)
    answer = _in_slices(broker, ApiKey.ALTER_CONFIGS, context, slices, len(request.resources))
    return cast("AlterConfigsResponse | Pending[AlterConfigsResponse]", answer)


@handles(ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=(0, 1))
def incremental_alter_configs(
    broker: Broker, request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse | Pending[IncrementalAlterConfigsResponse]:
    """Answered once the settings are durable and in force."""
    changes = (
        ConfigChange(
            resource.resource_type,
            resource.resource_name,
            tuple((each.name, each.config_operation, each.value) for each in resource.configs),
        )
        for resource in request.resources
    )
    asked = _Asked(peer_of(context.client_id), request.validate_only)
    slices = _changed(broker, changes, IncrementalAlterConfigsResponse, asked)
    key, count = ApiKey.INCREMENTAL_ALTER_CONFIGS, len(request.resources)
    answer = _in_slices(broker, key, context, slices, count)
    return cast(
        "IncrementalAlterConfigsResponse | Pending[IncrementalAlterConfigsResponse]", answer
    )


def _in_slices(
    broker: Broker, key: ApiKey, context: RequestContext, slices: Answering, count: int
) -> Any:
    """The results of `count` changes. They are made even if the peer disconnects."""
    is_large = count > ENTRIES_PER_SLICE
    return in_slices(broker, key, context, slices, keeps_peer=True, is_large=is_large)


class _Asked(NamedTuple):
    """Who asks, a client or a broker whose client did, and whether changes are only checked."""

    from_peer: int | None
    validate_only: bool


def _changed(
    broker: Broker, unread: Iterable[ConfigChange], response: Any, asked: _Asked
) -> Answering:
    """The result of each change: refused or done here, or the controller's answer. A broker asks
    for changes of its own settings, as a client asked it to."""
    validate_only = asked.validate_only
    node_id = broker.node_id if asked.from_peer is None else asked.from_peer
    changes: list[ConfigChange] = []
    for change in unread:
        changes.append(change)
        if not len(changes) % ENTRIES_PER_SLICE:
            yield
    named = resources_named(changes)
    results: list[Result] = []
    passed: dict[int, ConfigChange] = {}
    for place, change in enumerate(changes):
        results.append(refusal(change, named, node_id))
        if results[place] is None and change.resource_type == LOGGERS:
            results[place] = _change_loggers(broker, change, validate_only=validate_only)
        elif results[place] is None:
            passed[place] = change
        if not len(results) % ENTRIES_PER_SLICE:
            yield
    if passed:
        changing = ChangeConfigs(tuple(passed.values()), validate_only)
        controlled = broker.control(changing, from_peer=asked.from_peer)
        yield Answered(controlled)
        for place, result in zip(passed, controlled.response or (), strict=True):
            results[place] = result
    if not validate_only:
        _note_idle(broker, passed.values())
    responses: list[AlterConfigsResourceResponse] = []
    for change, result in zip(changes, results, strict=True):
        responses.append(_result_of(change, result))
        if not len(responses) % ENTRIES_PER_SLICE:
            yield
    return response(responses=tuple(responses))


def _change_loggers(broker: Broker, change: ConfigChange, *, validate_only: bool) -> Result:
    try:
        broker.loggers.change(change, validate_only=validate_only)
    except ApiError as error:
        return error
    return None


def _result_of(change: ConfigChange, error: Result) -> AlterConfigsResourceResponse:
    kind, name = change.resource_type, change.resource_name
    if error is None:
        return AlterConfigsResourceResponse(resource_type=kind, resource_name=name)
    return AlterConfigsResourceResponse(error.error_code, error.words, kind, name)


def _note_idle(broker: Broker, changes: Iterable[ConfigChange]) -> None:
    """Logs settings that are stored and have no effect."""
    named = {n for change in changes if change.resource_type == BROKER for n in change.names}
    for name in named.intersection(broker.config.ignored):
        broker.note(f"{name} is accepted and has no effect")
