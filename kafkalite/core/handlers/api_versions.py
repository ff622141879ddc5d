"""ApiVersions: what this broker speaks, built from the handlers that exist.                [P]

Source KIP-35, KIP-511. No features are advertised: transactions stay in their classic flow.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final

from kafkalite.core.handlers.routes import ROUTES, handles
from kafkalite.core.protocol.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.types import RequestContext
from kafkalite.errors import ErrorCode

if TYPE_CHECKING:
    from kafkalite.core.broker.broker import Broker

SOFTWARE_V: Final = 3
SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@handles(ApiKey.API_VERSIONS, versions=(0, 4))
def api_versions(
    broker: Broker, request: ApiVersionsRequest, context: RequestContext
) -> ApiVersionsResponse:
    """Every API with a handler; INVALID_REQUEST to a client whose software has no proper name."""
    software = (request.client_software_name, request.client_software_version)
    if context.api_version >= SOFTWARE_V and not all(map(SOFTWARE.fullmatch, software)):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return _supported()


@cache
def _supported() -> ApiVersionsResponse:
    public = (route for route in ROUTES.values() if not route.key.is_private)
    routes = sorted(public, key=lambda route: route.key)
    return ApiVersionsResponse(
        api_keys=tuple(ApiVersion(int(route.key), *route.versions) for route in routes)
    )


def unsupported_version() -> ApiVersionsResponse:
    """The answer, in v0, to an ApiVersions request newer than ours (KIP-511)."""
    versions = ROUTES[ApiKey.API_VERSIONS].versions
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=(ApiVersion(int(ApiKey.API_VERSIONS), *versions),),
    )
