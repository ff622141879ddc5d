"""Settings of topics and brokers: describe, replace, change.                              [P]

A resource_type is 2 for a topic and 4 for a broker (apache/kafka `ConfigResource.Type`).

Source: the JSON of each name below, Request and Response.
  DescribeConfigs (32)          v1 config_source and synonyms (KIP-226); v3 config_type and
                                documentation (KIP-569); v4 flexible
  AlterConfigs (33)             v2 flexible
  IncrementalAlterConfigs (44)  KIP-339; v1 flexible
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

from kafkalite.core.protocol.codec import Request, message, struct
from kafkalite.core.protocol.primitives import Bool, Int8, Int32, Since, String, Until
from kafkalite.errors import ErrorCode


class ConfigOperation(IntEnum):
    """IncrementalAlterConfigs' operation on one setting."""

    SET = 0
    DELETE = 1
    APPEND = 2  # to a list
    SUBTRACT = 3


@struct
class DescribeConfigsResource:
    """A topic or broker; null configuration_keys mean all settings."""

    resource_type: Int8
    resource_name: String
    configuration_keys: tuple[String, ...] | None


@message(api_key=32, versions=(0, 4), flexible_since=4)
class DescribeConfigsRequest(Request["DescribeConfigsResponse"]):
    """Asks for settings."""

    resources: tuple[DescribeConfigsResource, ...]
    include_synonyms: Annotated[Bool, Since(1)] = False
    include_documentation: Annotated[Bool, Since(3)] = False


@struct
class DescribeConfigsSynonym:
    """A place that the setting may come from, nearest first."""

    name: String
    value: String | None
    source: Int8


@struct
class DescribeConfigsResourceResult:
    """A setting, its value, and where that comes from."""

    name: String
    value: String | None
    read_only: Bool
    is_default: Annotated[Bool, Until(0)] = False
    config_source: Annotated[Int8, Since(1)] = -1
    is_sensitive: Bool = False
    synonyms: Annotated[tuple[DescribeConfigsSynonym, ...], Since(1)] = ()
    config_type: Annotated[Int8, Since(3)] = 0
    documentation: Annotated[String | None, Since(3)] = ""


@struct
class DescribeConfigsResult:
    """The settings of one topic or broker."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: String | None = None
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: tuple[DescribeConfigsResourceResult, ...] = ()


@message(api_key=32, versions=(0, 4), flexible_since=4, response=True)
class DescribeConfigsResponse:
    """The settings."""

    throttle_time_ms: Int32 = 0
    results: tuple[DescribeConfigsResult, ...] = ()


@struct
class AlterableConfig:
    """A setting and its new value."""

    name: String
    value: String | None


@struct
class AlterConfigsResource:
    """All settings that a topic or broker shall have; others return to their defaults."""

    resource_type: Int8
    resource_name: String
    configs: tuple[AlterableConfig, ...]


@message(api_key=33, versions=(0, 2), flexible_since=2)
class AlterConfigsRequest(Request["AlterConfigsResponse"]):
    """Asks to replace the settings of topics and brokers."""

    resources: tuple[AlterConfigsResource, ...]
    validate_only: Bool


@struct
class AlterConfigsResourceResponse:
    """The result of one topic's or broker's settings."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: String | None = None
    resource_type: Int8 = 0
    resource_name: String = ""


@message(api_key=33, versions=(0, 2), flexible_since=2, response=True)
class AlterConfigsResponse:
    """The result of the settings."""

    throttle_time_ms: Int32 = 0
    responses: tuple[AlterConfigsResourceResponse, ...] = ()


@struct
class IncrementalAlterableConfig:
    """A change of one setting: config_operation is a `ConfigOperation`."""

    name: String
    config_operation: Int8
    value: String | None


@struct
class IncrementalAlterConfigsResource:
    """The changes to one topic's or broker's settings."""

    resource_type: Int8
    resource_name: String
    configs: tuple[IncrementalAlterableConfig, ...]


@message(api_key=44, versions=(0, 1), flexible_since=1)
class IncrementalAlterConfigsRequest(Request["IncrementalAlterConfigsResponse"]):
    """Asks to change some settings and keep the others (KIP-339)."""

    resources: tuple[IncrementalAlterConfigsResource, ...]
    validate_only: Bool


@message(api_key=44, versions=(0, 1), flexible_since=1, response=True)
class IncrementalAlterConfigsResponse:
    """The result of the settings."""

    throttle_time_ms: Int32 = 0
    responses: tuple[AlterConfigsResourceResponse, ...] = ()
