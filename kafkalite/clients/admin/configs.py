"""The admin client's calls about the settings of topics and brokers.                       [IO]

Owns   nothing.
Never  touches a setting that the caller did not name.
Fails  with ApiError naming the resource and the broker's reason; ValueError for a broker
       whose name is not a number.
Source KIP-133, KIP-226 (dynamic settings), KIP-339 (incremental), KIP-569 (types, documentation).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from kafkalite.clients.admin.calls import AdminCalls, raise_for
from kafkalite.core.protocol.configs import (
    ConfigOperation,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)

EVERY_BROKER: Final = ""  # the name of the resource whose settings all brokers fall back to
RESOURCES_AT_ONCE: Final = 100  # described by one request
NO_CHANGES: Final[Mapping[str, str]] = MappingProxyType({})


class ResourceType(IntEnum):
    """A kind of thing that has settings."""

    TOPIC = 2
    BROKER = 4


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """A topic by its name, or a broker by its id in digits; EVERY_BROKER for what all share."""

    resource_type: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.resource_type.name.lower()} {self.name or 'default'}"


class ConfigSource(IntEnum):
    """The origin of a setting's value."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8

    @classmethod
    def _missing_(cls, value: object) -> ConfigSource:
        return cls.UNKNOWN


class ConfigType(IntEnum):
    """The type of a setting."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9

    @classmethod
    def _missing_(cls, value: object) -> ConfigType:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A place that a setting's value may come from."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting. The value of a sensitive one is None.

    `synonyms` (the effective value first) and `documentation` are filled in on request.
    """

    name: str
    value: str | None
    source: ConfigSource = ConfigSource.UNKNOWN
    is_read_only: bool = False
    is_sensitive: bool = False
    config_type: ConfigType = ConfigType.UNKNOWN
    synonyms: tuple[ConfigSynonym, ...] = ()
    documentation: str | None = None


class ConfigCalls(AdminCalls):
    """Settings."""

    async def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        names: Iterable[str] | None = None,
        *,
        synonyms: bool = False,
        documentation: bool = False,
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """The settings called `names`, or all, of topics and brokers, with their defaults."""
        keys = None if names is None else tuple(names)
        described: dict[ConfigResource, dict[str, ConfigEntry]] = {}
        for home, some in _at_home(resources):
            asked = tuple(DescribeConfigsResource(r.resource_type, r.name, keys) for r in some)
            request = DescribeConfigsRequest(asked, synonyms, documentation)
            response = await self._client.request(request, home)
            for result in response.results:
                resource = ConfigResource(ResourceType(result.resource_type), result.resource_name)
                raise_for([(str(resource), result.error_code, result.error_message)])
                described[resource] = {entry.name: _entry(entry) for entry in result.configs}
        return described

    async def alter_configs(
        self,
        resource: ConfigResource,
        changes: Mapping[str, str | None] = NO_CHANGES,
        *,
        append: Mapping[str, str] = NO_CHANGES,
        subtract: Mapping[str, str] = NO_CHANGES,
        validate_only: bool = False,
    ) -> None:
        """Sets these settings and keeps the others; None returns one to its default.

        `append` and `subtract` add entries to settings that are lists, and take them out.
        """
        do = ConfigOperation
        operations = [
            *((n, do.DELETE if v is None else do.SET, v) for n, v in changes.items()),
            *((n, do.APPEND, v) for n, v in append.items()),
            *((n, do.SUBTRACT, v) for n, v in subtract.items()),
        ]
        configs = tuple(IncrementalAlterableConfig(*each) for each in operations)
        altered = IncrementalAlterConfigsResource(resource.resource_type, resource.name, configs)
        request = IncrementalAlterConfigsRequest((altered,), validate_only)
        node_id = _home(resource)
        if node_id is not None:
            response = await self._client.request(request, node_id)
            raise_for([(str(resource), r.error_code, r.error_message) for r in response.responses])
            return
        await self._ask_controller(
            request,
            lambda r: [(str(resource), t.error_code, t.error_message) for t in r.responses],
        )


def _at_home(
    resources: Iterable[ConfigResource],
) -> Iterator[tuple[int | None, list[ConfigResource]]]:
    """The resources of one request each, with the broker to ask."""
    by_home: dict[int | None, list[ConfigResource]] = {}
    for resource in resources:
        by_home.setdefault(_home(resource), []).append(resource)
    for home, some in by_home.items():
        for first in range(0, len(some), RESOURCES_AT_ONCE):
            yield home, some[first : first + RESOURCES_AT_ONCE]


def _home(resource: ConfigResource) -> int | None:
    """The broker that knows a resource's settings; None where every broker does."""
    if resource.resource_type is not ResourceType.BROKER or resource.name == EVERY_BROKER:
        return None
    if not (resource.name.isascii() and resource.name.isdigit()):
        raise ValueError(f"broker {resource.name!r} is not a broker id")
    return int(resource.name)


def _entry(result: DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        result.name,
        result.value,
        ConfigSource(result.config_source),
        result.read_only,
        result.is_sensitive,
        ConfigType(result.config_type),
        tuple(ConfigSynonym(s.name, s.value, ConfigSource(s.source)) for s in result.synonyms),
        result.documentation or None,
    )
