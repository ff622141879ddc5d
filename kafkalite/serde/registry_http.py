"""The registry's REST API over HTTP: an ASGI application on one schema log.                  [IO]

    request ── framing, origin ── limits ── route ── body ── log ── answer
               400,403            503,414   404,405  413,415  50001…

A subject may contain any character, even an encoded slash, so paths are split before they are
decoded. `registry_rest` defines the calls; the schema log appends records and reads them back.

A web page in a user's browser could send requests from behind a firewall. The browser asks for
permission before it sends JSON to another origin, and the registry refuses. Each request names the
page's origin. So a request that changes something must have a JSON content type, and must not come
from another origin.

Owns   statuses, content types, the limits of a request, and the number of requests at work.
Never  waits for the log longer than REQUEST_SECONDS_MAX.
Fails  never: every failure is an answer in Confluent's form, `{"error_code": …, "message": …}`.
Source confluentinc/schema-registry `Versions` (content types), `Errors` (50001 and 50002);
       confluentinc/rest-utils (the answer to a body that is not JSON).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kafkalite.errors import ApiError, ErrorCode, KafkaliteError, SchemaError
from kafkalite.monitoring.monitor import Monitor, Unready
from kafkalite.monitoring.server import health_page
from kafkalite.serde.glimpse import glimpse
from kafkalite.serde.registry import SCHEMA_TOO_LARGE
from kafkalite.serde.registry_calls import Call, PlainText, problem
from kafkalite.serde.registry_log import SchemaLog
from kafkalite.serde.registry_metrics import RegistryMetrics
from kafkalite.serde.registry_rest import Around, Route, find_route
from kafkalite.serde.registry_state import SCHEMA_NOT_FOUND

T = TypeVar("T")

log = logging.getLogger(__name__)

BODY_BYTES_MAX: Final = 4_000_000  # a schema of a megabyte, its quotes escaped
PATH_BYTES_MAX: Final = 8_192
AT_WORK_MAX: Final = 128
REQUEST_SECONDS_MAX: Final = 30.0
BODY_SECONDS_MAX: Final = 10.0

V1_JSON: Final = "application/vnd.schemaregistry.v1+json"
JSON_TYPES: Final = (V1_JSON, "application/vnd.schemaregistry+json", "application/json")
ANY_TYPES: Final = frozenset({"*", "application/*"})
UTF_8: Final = frozenset({"utf-8", "utf8"})
READING: Final = frozenset({"GET", "HEAD"})
WITH_BODY: Final = frozenset({"POST", "PUT"})
GROUP: Final = "schema-registry"

STORE_ERROR: Final = 50001
TIMED_OUT: Final = 50002


class FramingError(SchemaError):
    """A request whose end is ambiguous. The bytes after it are ignored."""


class RegistryApp:
    """The application. `opened` returns the log, and opens it if necessary."""

    def __init__(
        self,
        opened: Callable[[], Awaitable[SchemaLog]],
        metrics: RegistryMetrics,
        *,
        version: str,
        beside: Monitor | None = None,
    ) -> None:
        self._opened, self._metrics, self._version = opened, metrics, version
        self._at_work = 0
        self._beside = beside  # a broker in the same process
        self._pages: dict[tuple[str, ...], Callable[[Request], Coroutine[Any, Any, Response]]] = {
            ("metrics",): self._metrics_page,
            ("v1", "metadata", "id"): self._cluster_page,
            ("v1", "metadata", "version"): self._version_page,
        }
        if beside is not None:
            self._pages["health",] = lambda _: health_page(beside)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        assert scope["type"] == "http", scope["type"]
        request = Request(scope, receive)
        begun = time.perf_counter()
        where = "-"
        try:
            where, work = self._work(request)
            if self._at_work >= AT_WORK_MAX:
                work.close()
                raise SchemaError(f"{AT_WORK_MAX} requests are at work already", code=503)
            self._at_work += 1
            try:
                response = await work
            finally:
                self._at_work -= 1
        except ClientDisconnect:
            return
        except Exception as error:
            response = _failure(request, error)
            if isinstance(error, FramingError):
                response.headers["connection"] = "close"
        self._metrics.answered(where, response.status_code, time.perf_counter() - begun)
        if request.method == "HEAD":
            response.body = b""  # the headers stay
        await response(scope, receive, send)

    def _work(self, request: Request) -> tuple[str, Coroutine[Any, Any, Response]]:
        """The route of a request: its path in the metrics, and the function that answers."""
        _check_framing(request)
        _check_origin(request)
        method = "GET" if request.method == "HEAD" else request.method
        raw = request.scope["raw_path"]
        if len(raw) > PATH_BYTES_MAX:
            raise SchemaError(f"the path has {len(raw)} bytes, {PATH_BYTES_MAX} may", code=414)
        segments = _segments(raw)
        if method == "GET" and segments in self._pages:
            return "/" + "/".join(segments), self._pages[segments](request)
        route, parameters = _route(method, segments)
        return route.path, self._answer(request, route, parameters)

    async def _answer(
        self, request: Request, route: Route, parameters: Mapping[str, str]
    ) -> Response:
        """The answer of a route."""
        is_text = route.path.endswith("/schema") and "text/plain" in request.headers.get(
            "accept", ""
        )
        kind = V1_JSON if is_text else _answer_type(request)
        body = await _body(request) if request.method in WITH_BODY else None
        query: dict[str, list[str]] = {}
        for name, value in request.query_params.multi_items():
            query.setdefault(name, []).append(value)
        call = Call(parameters, query, body)
        answer = await _in_time(self._run_call(route, call))
        if isinstance(answer, PlainText):
            return Response(answer, media_type="text/plain")
        return _json(answer, 200, kind)

    async def _run_call(self, route: Route, call: Call) -> Any:
        """Runs a call as a write, from known state, or after catching up, as its route asks."""
        opened = await self._opened()

        def decide(registry: Any) -> Any:
            return route.answer(registry, call)

        match route.around:
            case Around.WRITE:
                return await opened.write(decide)
            case Around.KNOWN:
                try:
                    return decide(opened.registry)[0]
                except SchemaError as error:
                    if error.code != SCHEMA_NOT_FOUND:
                        raise
        await opened.catch_up()
        return decide(opened.registry)[0]

    # --- what is not in the log ------------------------------------------------------------

    async def _metrics_page(self, request: Request) -> Response:
        page = self._metrics.page()
        if self._beside is not None:
            with suppress(Unready):
                page += await self._beside.metrics()
        return Response(page, media_type=self._metrics.PAGE_TYPE)

    async def _cluster_page(self, request: Request) -> Response:
        """The ids of the Kafka cluster and of the registry."""
        opened = await _in_time(self._opened())
        clusters = {"kafka-cluster": opened.cluster_id, "schema-registry-cluster": GROUP}
        told = {"id": "", "scope": {"path": [], "clusters": clusters}}
        return _json(told, 200, _answer_type(request))

    async def _version_page(self, request: Request) -> Response:
        """Which program this is."""
        return _json({"version": self._version, "commitId": ""}, 200, _answer_type(request))


# --- requests ----------------------------------------------------------------------------


def _check_framing(request: Request) -> None:
    """FramingError if the body has two lengths, or a length that HTTP/1.0 does not know.

    RFC 9112, 6.1: proxies may have seen another end of it, and another request after it.
    """
    if "transfer-encoding" not in request.headers:
        return
    if "content-length" in request.headers:
        raise FramingError("Content-Length and Transfer-Encoding at once", code=400)
    if request.scope["http_version"] == "1.0":
        raise FramingError("Transfer-Encoding in HTTP/1.0", code=400)


def _check_origin(request: Request) -> None:
    """SchemaError when a page of another origin wants to change something."""
    origin = request.headers.get("origin")
    if origin is None or request.method in READING:
        return
    if origin.lower().partition("://")[2] != request.headers.get("host", "").lower():
        raise SchemaError(f"origin {glimpse(origin)} may not change anything here", code=403)


def _check_type(request: Request) -> None:
    """SchemaError if the content type of a body is not JSON in UTF-8."""
    kind, *parameters = request.headers.get("content-type", "").lower().split(";")
    named = [parameter.partition("=") for parameter in parameters]
    charsets = {v.strip().strip('"') for name, _, v in named if name.strip() == "charset"}
    if kind.strip() not in JSON_TYPES or charsets - UTF_8:
        raise SchemaError(
            f"HTTP 415 Unsupported Media Type: a body is {' or '.join(JSON_TYPES)}, in UTF-8",
            code=415,
        )


def _segments(raw: bytes) -> tuple[str, ...]:
    """The parts of a path, decoded."""
    try:
        path = raw.decode("ascii")
        parts = tuple(unquote(part, errors="strict") for part in path.split("/")[1:])
    except UnicodeDecodeError:
        raise SchemaError("the path is not encoded as UTF-8", code=400) from None
    return parts[:-1] if len(parts) > 1 and parts[-1] == "" else parts


def _route(method: str, segments: tuple[str, ...]) -> tuple[Route, dict[str, str]]:
    found = find_route(method, segments)
    if isinstance(found, tuple):
        return found
    if found:
        raise SchemaError("HTTP 405 Method Not Allowed", code=405)
    raise SchemaError("HTTP 404 Not Found", code=404)


def _answer_type(request: Request) -> str:
    """The JSON that the client likes best. SchemaError when it takes none."""
    accepted = [_weighted(part) for part in request.headers.get("accept", "*/*").split(",")]
    for _, kind in sorted(accepted, key=lambda pair: -pair[0]):
        if kind in JSON_TYPES:
            return kind
        if kind in ANY_TYPES or kind.startswith("*/"):
            return V1_JSON
    raise SchemaError("HTTP 406 Not Acceptable", code=406)


def _weighted(part: str) -> tuple[float, str]:
    """One of the types that a client takes, and how much it likes it."""
    kind, *parameters = (word.strip() for word in part.split(";"))
    weights = [word.removeprefix("q=") for word in parameters if word.startswith("q=")]
    try:
        return float(weights[0]) if weights else 1.0, kind
    except ValueError:
        return 0.0, kind


async def _body(request: Request) -> Any:
    """The body's JSON values. SchemaError when it is too large, too slow, or no JSON."""
    _check_type(request)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            async for chunk in request.stream():
                size += len(chunk)
                if size > BODY_BYTES_MAX:
                    raise SchemaError(
                        f"the body has more than the {BODY_BYTES_MAX} bytes that it may", code=413
                    )
                chunks.append(chunk)
    except TimeoutError:
        raise SchemaError(f"no whole body in {BODY_SECONDS_MAX:g} s", code=408) from None
    data = b"".join(chunks)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise SchemaError(f"the body is not JSON: {error}", code=400) from None


async def _in_time(work: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(REQUEST_SECONDS_MAX):
            return await work
    except TimeoutError:
        raise SchemaError(
            f"the log gave no answer in {REQUEST_SECONDS_MAX:g} s", code=TIMED_OUT
        ) from None


# --- responses ---------------------------------------------------------------------------


def _json(value: Any, status: int, kind: str = V1_JSON) -> Response:
    return Response(orjson.dumps(value), status, media_type=kind)


def _failure(request: Request, error: Exception) -> Response:
    """The response to an error. An unexpected error also goes to the log."""
    match error:
        case SchemaError():
            pass
        case ApiError(error_code=ErrorCode.MESSAGE_TOO_LARGE):
            error = SchemaError(str(error), code=SCHEMA_TOO_LARGE)
        case KafkaliteError():
            log.warning("%s %s: %s", request.method, request.url.path, error)
            error = SchemaError(f"the log {error}", code=STORE_ERROR)
        case _:
            log.exception("%s %s", request.method, request.url.path, exc_info=error)
            error = SchemaError("a fault of the registry's; its log says which", code=500)
    status, body = problem(error)
    return _json(body, status)
