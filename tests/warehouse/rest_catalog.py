"""A small REST catalog of Iceberg's protocol, over the tables of a catalog in SQLite.

It serves what loads and compactions ask for: namespaces, staged and committed tables. A test can
let it lose the answer to a commit, or fail.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.parse import unquote

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest, StagedTable, Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

CODES = {
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    CommitFailedException: 409,
}


class RestCatalogServer(ThreadingHTTPServer):
    """`lost_answers`: so many commits succeed, and the client never hears of it. `failures`: so
    many requests are answered by 503 and do nothing. `requests` has method and path of each.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.tables = SqlCatalog("served", uri=f"sqlite:///{folder / 'tables.db'}", warehouse="-")
        self.one_at_a_time = Lock()
        self.lost_answers = self.failures = 0
        self.requests: list[str] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def properties(self) -> dict[str, str]:
        """How pyiceberg finds this catalog."""
        return {"type": "rest", "uri": f"http://127.0.0.1:{self.server_port}"}

    def answer(self, method: str, path: list[str], body: Any) -> Any:
        """The answer as JSON holds it."""
        match method, path:
            case "GET", ["config"]:
                return {"defaults": {}, "overrides": {}}
            case "POST", ["namespaces"]:
                self.tables.create_namespace(tuple(body["namespace"]))
                return {"namespace": body["namespace"], "properties": {}}
            case "GET", ["namespaces", namespace, "tables", table]:
                return _described(self.tables.load_table((namespace, table)))
            case "POST", ["namespaces", namespace, "tables"]:
                wanted = CreateTableRequest.model_validate(body)
                return _described(self._staged(namespace, wanted), is_staged=True)
            case "POST", ["namespaces", namespace, "tables", table]:
                return self._commit(namespace, table, CommitTableRequest.model_validate(body))
        raise AssertionError(f"no client of ours asks {method} {path}")

    def _staged(self, namespace: str, wanted: CreateTableRequest) -> StagedTable:
        assert wanted.stage_create, "a table appears with its first rows"
        if self.tables.table_exists((namespace, wanted.name)):
            raise TableAlreadyExistsError(wanted.name)
        return self.tables._create_staged_table(
            (namespace, wanted.name),
            wanted.table_schema,
            wanted.location,
            wanted.partition_spec or UNPARTITIONED_PARTITION_SPEC,
            wanted.write_order or UNSORTED_SORT_ORDER,
            wanted.properties,
        )

    def _commit(self, namespace: str, name: str, wanted: CommitTableRequest) -> Any:
        """Creates the table, or changes it."""
        names = (namespace, name)
        table = Table(names, None, "", None, self.tables)  # type: ignore[arg-type]  # a name
        made = self.tables.commit_table(table, wanted.requirements, wanted.updates)
        return made.model_dump(mode="json", by_alias=True)


def _described(table: Table, *, is_staged: bool = False) -> Any:
    location = None if is_staged else table.metadata_location
    metadata = json.loads(table.metadata.model_dump_json(by_alias=True))
    return {"metadata-location": location, "metadata": metadata, "config": {}}


class _Handler(BaseHTTPRequestHandler):
    server: RestCatalogServer

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def _serve(self) -> None:
        path = [unquote(part) for part in self.path.split("?")[0].split("/")[2:]]  # after /v1
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        server = self.server
        server.requests.append(f"{self.command} {self.path}")
        with server.one_at_a_time:
            if server.failures:
                server.failures -= 1
                self._send(503, {"error": {"message": "busy", "type": "Busy", "code": 503}})
                return
            try:
                answer = server.answer(self.command, path, json.loads(body or b"null"))
            except tuple(CODES) as error:
                code = CODES[type(error)]
                told = {"message": str(error), "type": type(error).__name__, "code": code}
                self._send(code, {"error": told})
                return
        is_commit = self.command == "POST" and path[-1] not in ("namespaces", "tables")
        if is_commit and server.lost_answers:
            server.lost_answers -= 1
            self.close_connection = True
            return
        self._send(200, answer)

    def _send(self, code: int, answer: Any) -> None:
        body = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def rest_catalog(folder: Path) -> Iterator[RestCatalogServer]:
    """A server, until the block ends."""
    server = RestCatalogServer(folder)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
