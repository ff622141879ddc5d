"""ApiVersions (key 18): which APIs and versions a broker speaks.                          [P]

The response's header is always v0, so that a client can read it before it knows anything. A broker
that does not know the request's version answers in v0 with UNSUPPORTED_VERSION and the range of
ApiVersions itself, and the client asks again in the best common version (KIP-511).

Source: ApiVersionsRequest.json, ApiVersionsResponse.json.
  v1 throttle_time_ms; v2 the same, throttled after the answer; v3 flexible, the client's software
  (KIP-511) and features (KIP-584); v4 as v3, features may begin at level 0 (KAFKA-17011).
"""

from __future__ import annotations

from typing import Annotated

from kafkalite.core.protocol.codec import Request, message, struct
from kafkalite.core.protocol.primitives import Bool, Int16, Int32, Int64, Since, String, Tag
from kafkalite.errors import ErrorCode


@message(api_key=18, versions=(0, 4), flexible_since=3)
class ApiVersionsRequest(Request["ApiVersionsResponse"]):
    """Asks which APIs and versions the broker speaks; the first request of every client."""

    client_software_name: Annotated[String, Since(3)] = ""
    client_software_version: Annotated[String, Since(3)] = ""


@struct
class ApiVersion:
    """The versions of one API that the broker speaks, both ends included."""

    api_key: Int16
    min_version: Int16
    max_version: Int16


@struct
class SupportedFeatureKey:
    """The levels of a cluster feature that this broker can run at (KIP-584)."""

    name: String
    min_version: Int16
    max_version: Int16


@struct
class FinalizedFeatureKey:
    """The levels of a cluster feature that the whole cluster runs at (KIP-584)."""

    name: String
    max_version_level: Int16
    min_version_level: Int16


@message(api_key=18, versions=(0, 4), flexible_since=3, response=True)
class ApiVersionsResponse:
    """The APIs and versions of the broker."""

    error_code: ErrorCode = ErrorCode.NONE
    api_keys: tuple[ApiVersion, ...] = ()
    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    supported_features: Annotated[tuple[SupportedFeatureKey, ...], Tag(0, since=3)] = ()
    finalized_features_epoch: Annotated[Int64, Tag(1, since=3)] = -1
    finalized_features: Annotated[tuple[FinalizedFeatureKey, ...], Tag(2, since=3)] = ()
    zk_migration_ready: Annotated[Bool, Tag(3, since=3)] = False
