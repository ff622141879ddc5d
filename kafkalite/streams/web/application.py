"""A worker over HTTP: its stores, metrics, health and topology.                           [IO]

    GET /stores                              the stores of the application, and who has their tasks
    GET /stores/NAME/KEY                     {"key", "value"}; of windows {"rows": […]}, ?from=&to=
    GET /stores/NAME?start=&end=&prefix=     {"rows", "next"}: a page of up to ?limit=, then ?next=
    GET /metrics                             Prometheus' text
    GET /health                              200 when every task of the worker runs, else 503
    GET /topology                            the plan, with the tasks of this worker and their lags

Any worker answers for all: it asks the worker whose task has the key, or every worker for a range,
and says which one it was (`x-kafkalite-worker`). With `?max_lag=` a copy answers for a key whose
task does not run, and says how many records it lacks (`x-kafkalite-lag`).
`?after=TOPIC:PARTITION:OFFSET` waits until the store has seen that record, at most `?timeout=`.

    400 a key or parameter that makes no sense     404 no such store, or no row of that key
    409 the key's task is with a worker that answers nobody     503 nobody runs it at the moment

Owns   statuses and JSON: values that it does not know are text.
Fails  never: every failure is an answer.
Source Kafka Streams' interactive queries, of which each application builds its own server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice, takewhile
from time import monotonic
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import quote, unquote

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kafkalite.errors import BrokerUnavailable, KafkaliteError, TopologyError
from kafkalite.streams.describe import describe
from kafkalite.streams.durations import positive
from kafkalite.streams.live import Asking
from kafkalite.streams.local.assignor import TaskId
from kafkalite.streams.local.overview import Overview
from kafkalite.streams.local.peers import Peer
from kafkalite.streams.local.queries import Home, Queries, StoreUnavailable, windows_of
from kafkalite.streams.plan import Plan
from kafkalite.streams.web.client import get
from kafkalite.streams.web.documents import (
    END_OF_TIME,
    LIMIT,
    WORKER,
    Refused,
    encoded,
    key_of,
    no_row,
    row_document,
    store_document,
)
from kafkalite.streams.web.metrics import PAGE_TYPE, page
from kafkalite.streams.web.rates import STEP_SECONDS, Rates

log: Final = logging.getLogger(__name__)

LIMIT_MAX: Final = 10_000
TIMEOUT: Final = "10s"
PEER_SECONDS: Final = 10.0
COPY_SECONDS: Final = 2.0  # the same where a copy may answer instead
LAG: Final = "x-kafkalite-lag"
FOUND: Final = (200, 404)  # whether there is a row is known
READING: Final = frozenset({"GET", "HEAD"})

LookUp = Callable[[], Coroutine[Any, Any, Sequence[Peer]]]  # who has which tasks
Row = tuple[bytes, dict[str, Any]]  # the bytes of its key, and its JSON


@dataclass(frozen=True, slots=True)
class Question:
    """A request for rows of a store."""

    store: str
    key: str | None
    parameters: Mapping[str, str]
    query: str  # as it came, for another worker
    is_local: bool  # asked by another worker: only this one's rows

    @property
    def path(self) -> str:
        """The same question to another worker."""
        key = "" if self.key is None else f"/{quote(self.key, safe='')}"
        return f"/stores/{quote(self.store, safe='')}{key}?{self.query}&local=1"

    def number(self, name: str, default: int) -> int:
        """A parameter that is a number, 0 or more."""
        given = self.parameters.get(name)
        if given is None:
            return default
        if not given.isascii() or not given.isdigit():
            raise Refused(400, f"{name}: expected a number, got {given!r}")
        return int(given)


class WorkerApp:
    """The ASGI application of one worker, which answers at `address`."""

    def __init__(
        self,
        plan: Plan,
        asking: Asking,
        overview: Callable[[], Overview | None],
        peers: LookUp,
        address: str,
    ) -> None:
        self._plan = plan
        self._asking = asking
        self._overview = overview
        self._peers = peers
        self._address = address
        self.rates = Rates()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        assert scope["type"] == "http", scope["type"]
        request = Request(scope, receive)
        response = await self._answer(request)
        if request.method == "HEAD":
            response.body = b""  # the headers stay
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if request.method not in READING:
            return Response(status_code=405, headers={"allow": "GET, HEAD"})
        try:
            return await self._page(request)
        except Refused as error:
            return _error_response(error.status, str(error))
        except StoreUnavailable as error:
            return _unavailable(error)
        except BrokerUnavailable as error:
            return _error_response(503, str(error))
        except TopologyError as error:
            return _error_response(404, str(error))
        except KafkaliteError as error:
            return _error_response(400, str(error))
        except Exception:
            log.exception("%s", request.scope["path"])
            return _error_response(500, "a fault of the worker's; its log says which")

    async def _page(self, request: Request) -> Response:
        raw = request.scope.get("raw_path") or request.scope["path"].encode()
        parts = [unquote(part) for part in raw.decode("latin-1").strip("/").split("/")]
        match parts:
            case ["stores"]:
                return _json_response(await self._stores())
            case ["stores", name]:
                return await self._range(_question(request, name, None))
            case ["stores", name, key]:
                return await self._row(_question(request, name, key))
            case ["metrics"]:
                return Response(page(await self._seen()), media_type=PAGE_TYPE)
            case ["health"]:
                return await self._health()
            case ["topology"]:
                return _json_response(await self._topology())
        raise Refused(404, "there are /stores, /metrics, /health and /topology")

    # Stores

    async def _stores(self) -> list[dict[str, Any]]:
        peers = await self._asking.ask(lambda _: self._peers())
        queries = await self._asking.ask(_themselves)
        owners = {str(task): peer.address for peer in peers for task in peer.tasks}
        return [_document_of(queries.home(name), owners) for name in queries.names]

    async def _row(self, question: Question) -> Response:
        assert question.key is not None
        queries = await self._asking.ask(_themselves)
        home = queries.home(question.store)
        key = key_of(home.store, question.key)
        if home.sub is not None and not question.is_local:
            task = TaskId(home.sub.id, queries.partition_of(home, key))
            if "max_lag" in question.parameters:
                return await self._row_or_copy(question, home, key, task)
            if (there := await self._elsewhere(task)) is not None:
                return _passed_on(there, await get(there, question.path, PEER_SECONDS))
        return await self._row_here(question, home, key)

    async def _row_here(self, question: Question, home: Home, key: Any) -> Response:
        rows, lag = await self._asking.ask(lambda q: self._local_rows(q, question, key))
        stale = {} if lag is None else {LAG: str(lag)}
        if home.is_windowed:
            return self._response({"rows": [row for _, row in rows]}, headers=stale)
        if not rows:
            words = no_row(question.store, str(question.key))
            return _error_response(404, words, {WORKER: self._address} | stale)
        return self._response(rows[0][1], headers=stale)

    async def _row_or_copy(
        self, question: Question, home: Home, key: Any, task: TaskId
    ) -> Response:
        """Of the task that runs; else of the copy that lacks the fewest records."""
        here = partial(self._answered, question, home, key)
        try:
            there = await self._elsewhere(task)
        except Refused:  # it has no address
            there = None
        if there is not None:
            first = await self._asked(there, question)
        else:
            first = await here()
        if first.status_code in FOUND and LAG not in first.headers:
            return first
        others = [
            peer.address
            for peer in await self._asking.ask(lambda _: self._peers())
            if peer.address not in (None, there, self._address)
        ]
        asked = [self._asked(str(address), question) for address in others]
        if there is not None:
            asked.append(here())
        answers = [first, *await asyncio.gather(*asked)]
        found = [answer for answer in answers if answer.status_code in FOUND]
        return min(found, key=lambda a: int(a.headers.get(LAG, "0")), default=first)

    async def _answered(self, question: Question, home: Home, key: Any) -> Response:
        try:
            return await self._row_here(question, home, key)
        except StoreUnavailable as error:
            return _unavailable(error)

    async def _asked(self, address: str, question: Question) -> Response:
        try:
            return _passed_on(address, await get(address, question.path, COPY_SECONDS))
        except BrokerUnavailable as error:
            return _unavailable(error)

    async def _local_rows(
        self, queries: Queries, question: Question, key: Any
    ) -> tuple[list[Row], int | None]:
        """The rows of a key, and how many records their copy lacks; None: the task runs."""
        await self._wait(queries, question)
        home = queries.home(question.store)
        copy, lag = None, None
        if "max_lag" in question.parameters:
            copy = queries.copy(
                home, queries.partition_of(home, key), question.number("max_lag", 0)
            )
            lag = None if copy is None else queries.lag(question.store, key)
        if home.is_windowed:
            first, last = question.number("from", 0), question.number("to", END_OF_TIME)
            limit = _limit(question)
            if copy is not None:
                pairs = windows_of(copy, home, key, first, last, limit)
            else:
                pairs = await queries.rows(
                    question.store, lambda view: list(islice(view.fetch(key, first, last), limit))
                )
        else:
            value = (
                await queries.get(question.store, key)
                if copy is None
                else copy.store(question.store).get(key)
            )
            pairs = [] if value is None else [(key, value)]
        return [(b"", row_document(key, value)) for key, value in pairs], lag

    async def _elsewhere(self, task: TaskId) -> str | None:
        """The address of the worker that has the task; None where that is this one."""
        overview = await self._asking.ask(self._look)
        if overview is not None and task in overview.tasks:
            return None
        for peer in await self._asking.ask(lambda _: self._peers()):
            if task not in peer.tasks or peer.address == self._address:
                continue
            if peer.address is None:
                raise Refused(
                    409, f"task {task} is with a worker at {peer.host} that has no HTTP address"
                )
            return peer.address
        return None

    async def _range(self, question: Question) -> Response:
        limit = _limit(question)
        queries = await self._asking.ask(_themselves)
        is_global = queries.home(question.store).sub is None
        rows = await self._asking.ask(lambda q: self._local_range(q, question, limit + 1))
        if not question.is_local and not is_global:
            rows += await self._ranges_elsewhere(question)
            rows.sort(key=lambda row: row[0])
        page_of_rows: dict[str, Any] = {"rows": [row for _, row in rows[:limit]], "next": None}
        if len(rows) > limit:
            page_of_rows["next"] = rows[limit - 1][0].hex()
        if question.is_local:
            page_of_rows["order"] = [order.hex() for order, _ in rows[:limit]]
        return self._response(page_of_rows)

    async def _local_range(self, queries: Queries, question: Question, limit: int) -> list[Row]:
        await self._wait(queries, question)
        home = queries.home(question.store)
        if not queries.has_tasks(home):
            return []
        given = question.parameters
        start, end, prefix = (
            key_of(home.store, given[name]) if name in given else None
            for name in ("start", "end", "prefix")
        )
        begins = None if prefix is None else queries.key_bytes(home, [prefix])[0]
        first = start if prefix is None else prefix
        behind = _hex(given["next"]) if "next" in given else None
        if behind is not None and (first is None or behind > queries.key_bytes(home, [first])[0]):
            first = queries.key_of_order(home, behind)

        def pick(view: Any) -> list[tuple[Any, Any]]:
            pairs = view.range(first, end)
            if behind is not None:
                pairs = (pair for pair in pairs if queries.order_of(home, pair[0]) > behind)
            if begins is not None:
                pairs = takewhile(
                    lambda pair: queries.order_of(home, pair[0]).startswith(begins), pairs
                )
            return list(islice(pairs, limit))

        found = await queries.rows(question.store, pick)
        rows = [(queries.order_of(home, key), row_document(key, value)) for key, value in found]
        return rows[:limit]

    async def _ranges_elsewhere(self, question: Question) -> list[Row]:
        """The rows of all other workers. One that does not answer makes the page incomplete, which
        nobody would see: the request fails."""
        queries = await self._asking.ask(_themselves)
        home = queries.home(question.store)
        assert home.sub is not None, "every worker has all of a global table"
        others = [
            peer
            for peer in await self._asking.ask(lambda _: self._peers())
            if peer.address != self._address
            and any(task.sub_topology == home.sub.id for task in peer.tasks)
        ]
        for peer in others:
            if peer.address is None:
                raise Refused(409, f"a worker at {peer.host} has rows, and no HTTP address")
        answers = await asyncio.gather(
            *(get(str(peer.address), question.path, PEER_SECONDS) for peer in others)
        )
        rows: list[Row] = []
        for peer, (status, _, body) in zip(others, answers, strict=True):
            if status != 200:
                raise Refused(503, f"{peer.address} has answered {status}: {body[:200]!r}")
            answer = orjson.loads(body)
            rows += zip(map(bytes.fromhex, answer["order"]), answer["rows"], strict=True)
        return rows

    async def _wait(self, queries: Queries, question: Question) -> None:
        """Until the store has seen the record that the question names, if it does."""
        if (given := question.parameters.get("after")) is None:
            return
        topic, _, rest = given.partition(":")
        partition, _, offset = rest.partition(":")
        if not (topic and partition.isdigit() and offset.isdigit()):
            raise Refused(400, f"after: expected TOPIC:PARTITION:OFFSET, got {given!r}")
        timeout = question.parameters.get("timeout", TIMEOUT)
        place = SimpleNamespace(topic=topic, partition=int(partition), offset=int(offset))
        await queries.seen(question.store, place, positive(timeout, "timeout") / 1000)

    def _response(self, document: Any, headers: Mapping[str, str] | None = None) -> Response:
        return _json_response(document, headers={WORKER: self._address, **(headers or {})})

    # The worker

    async def _look(self, _: Queries) -> Overview | None:
        return self._overview()

    async def _seen(self) -> Overview:
        overview = await self._asking.ask(self._look)
        if overview is None:
            raise StoreUnavailable("the worker has not joined its group yet")
        return overview

    async def _health(self) -> Response:
        try:
            overview = await self._seen()
        except StoreUnavailable as error:
            return _json_response({"status": "starting", "reasons": [str(error)]}, 503)
        restoring = [
            f"task {task} is restored: {behind} offsets to go"
            for task, behind in sorted(overview.restoring.items())
        ]
        reasons = restoring or ([] if overview.is_settled else ["its tasks are being prepared"])
        health = {"status": "starting" if reasons else "ready", "reasons": reasons}
        return _json_response(health | {"tasks": len(overview.tasks)}, 503 if reasons else 200)

    async def _topology(self) -> dict[str, Any]:
        overview = await self._seen()
        plan: dict[str, Any] = orjson.loads(describe(self._plan, "json"))
        now = counts_of(overview)
        rates = self.rates.of(monotonic(), now)
        tasks = [
            {
                "task": str(task_id),
                "records": task.metrics.get("process-total", 0),
                "records_per_second": rates["task", str(task_id)],
                "written": task.metrics.get("records-out-total", 0),
                "lag": sum(
                    overview.lags.get(tp) or 0
                    for tp in overview.lags
                    if tp.partition == task_id.partition
                    and task.sub_topology.source_of(tp.topic) is not None
                ),
            }
            for task_id, task in sorted(overview.tasks.items())
        ]
        counts = overview.counts
        worker = {
            "address": self._address,
            "seconds": round(counts.seconds, 3),
            "records": counts.records,
            "written": counts.records_out,
            "records_per_second": rates["records",],
            "written_per_second": rates["written",],
            "dropped": counts.drops.document(),
        }
        passed = [
            {"operator": name, "records": records, "records_per_second": rates["node", name]}
            for kind, name, records in sorted((*k, n) for k, n in now.items() if len(k) == 2)
            if kind == "node"
        ]
        return plan | {"worker": worker, "tasks": tasks, "passed": passed}

    async def watch(self) -> None:
        """Notes the counts now and then, for rates, until it is cancelled."""
        while True:
            with suppress(StoreUnavailable):  # it has not joined its group yet
                self.rates.note(monotonic(), counts_of(await self._seen()))
            await asyncio.sleep(STEP_SECONDS)


def counts_of(overview: Overview) -> dict[tuple[str, ...], int]:
    """What a worker has done, its tasks, and its operators."""
    counts = overview.counts
    found: dict[tuple[str, ...], int] = {
        ("records",): counts.records,
        ("written",): counts.records_out,
    }
    for task_id, task in overview.tasks.items():
        found["task", str(task_id)] = task.metrics.get("process-total", 0)
    return found | {("node", name): records for name, records in overview.passed.items()}


async def _themselves(queries: Queries) -> Queries:
    return queries


def _question(request: Request, name: str, key: str | None) -> Question:
    query = request.scope["query_string"].decode("latin-1")
    parameters = dict(request.query_params)
    is_local = parameters.pop("local", None) is not None
    return Question(name, key, parameters, query, is_local)


def _limit(question: Question) -> int:
    limit = question.number("limit", LIMIT)
    if not 1 <= limit <= LIMIT_MAX:
        raise Refused(400, f"limit: expected 1 to {LIMIT_MAX}, got {limit}")
    return limit


def _hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise Refused(400, f"next: expected what the page before gave, got {text!r}") from None


def _document_of(home: Home, owners: Mapping[str, str | None]) -> dict[str, Any]:
    sub = home.sub
    tasks = () if sub is None else [str(TaskId(sub.id, number)) for number in range(home.width)]
    return store_document(
        home.store,
        is_windowed=home.is_windowed,
        is_global=sub is None,
        tasks={task: owners.get(task) for task in tasks},
    )


def _json_response(
    document: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(encoded(document), status, headers, media_type="application/json")


def _passed_on(address: str, answer: tuple[int, dict[str, str], bytes]) -> Response:
    """What another worker has said."""
    status, headers, body = answer
    kept = {WORKER: address} | ({LAG: headers[LAG]} if LAG in headers else {})
    return Response(body, status, media_type="application/json", headers=kept)


def _unavailable(error: KafkaliteError) -> Response:
    return _error_response(503, str(error), {"retry-after": "1"})


def _error_response(status: int, words: str, headers: Mapping[str, str] | None = None) -> Response:
    return _json_response({"error": words}, status, headers)
