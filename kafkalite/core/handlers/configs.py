"""DescribeConfigs: every setting of topics and brokers, with where it comes from.          [P]

Source KIP-133, KIP-226 (synonyms), KIP-569 (types and documentation).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalite.core.config import ConfigEntry, ConfigSource
from kafkalite.core.handlers.routes import handles
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from kafkalite.core.topic_placement import check_name
from kafkalite.core.types import RequestContext
from kafkalite.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from kafkalite.core.broker import Broker

TOPIC: Final = 2
BROKER: Final = 4


@handles(ApiKey.DESCRIBE_CONFIGS, versions=(0, 4))
def describe_configs(
    broker: Broker, request: DescribeConfigsRequest, context: RequestContext
) -> DescribeConfigsResponse:
    """The settings of each resource, or of each why not."""
    results = []
    for resource in request.resources:
        try:
            entries = _entries(broker, resource)
        except ApiError as error:
            refusal = DescribeConfigsResult(
                error.error_code, str(error), resource.resource_type, resource.resource_name
            )
            results.append(refusal)
            continue
        wanted = resource.configuration_keys
        configs = tuple(
            _result(entry, request)
            for entry in entries
            if wanted is None or entry.key.name in wanted
        )
        results.append(
            DescribeConfigsResult(
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=configs,
            )
        )
    return DescribeConfigsResponse(results=tuple(results))


def _entries(broker: Broker, resource: DescribeConfigsResource) -> list[ConfigEntry]:
    name = resource.resource_name
    if resource.resource_type == TOPIC:
        check_name(name)
        topic = broker.image.topics.get(name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{name}'")
        return broker.config.topic(topic.configs).describe()
    if resource.resource_type == BROKER:
        if name == "":
            return []  # settings made for all brokers at once: there are none
        if name != str(broker.node_id):
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"broker '{name}', this is broker {broker.node_id}"
            )
        return broker.config.describe()
    raise ApiError(
        ErrorCode.INVALID_REQUEST,
        f"resource type {resource.resource_type}, expected 2 (topic) or 4 (broker)",
    )


def _result(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    hidden = entry.is_sensitive
    synonyms = entry.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=entry.key.name,
        value=None if hidden else entry.value,
        read_only=entry.is_read_only,
        is_default=entry.source is ConfigSource.DEFAULT_CONFIG,
        config_source=int(entry.source),
        is_sensitive=hidden,
        synonyms=tuple(
            DescribeConfigsSynonym(each.name, None if hidden else each.value, int(each.source))
            for each in synonyms
        ),
        config_type=int(entry.key.type),
        documentation=entry.key.doc if request.include_documentation else None,
    )
