"""A small HTTP service that knows towns by their postal codes, and has bad moments.

    python examples/enrichment/service.py [--port 8099]

`GET /towns/8010` answers `{"town": "Graz", "state": "Styria"}` after some milliseconds. Each
twentieth request is answered with 503, each five hundredth takes five seconds. A code that no town
has is 404, and code 6666 makes the service fail each time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Event, Thread

TOWNS = {
    "1010": ("Vienna", "Vienna"), "3100": ("Sankt Pölten", "Lower Austria"),
    "4020": ("Linz", "Upper Austria"), "5020": ("Salzburg", "Salzburg"),
    "6020": ("Innsbruck", "Tyrol"), "6900": ("Bregenz", "Vorarlberg"),
    "7000": ("Eisenstadt", "Burgenland"), "8010": ("Graz", "Styria"),
    "9020": ("Klagenfurt", "Carinthia"),
}  # fmt: skip
SLOW_SECONDS = 5.0

_requests = count(1)  # its next() is one step, also among threads


class Towns(BaseHTTPRequestHandler):
    """Answers a request."""

    protocol_version = "HTTP/1.1"  # which keeps connections

    def do_GET(self) -> None:
        number, code = next(_requests), self.path.removeprefix("/towns/")
        time.sleep(SLOW_SECONDS if number % 500 == 0 else 0.005)
        if number % 20 == 0 or code == "6666":
            self.answer(503, {"error": "try again"})
        elif code not in TOWNS:
            self.answer(404, {"error": f"no town has the code {code}"})
        else:
            town, state = TOWNS[code]
            self.answer(200, {"town": town, "state": state})

    def answer(self, status: int, body: dict[str, str]) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """A line for each request is more than anybody reads."""


@contextmanager
def running(port: int = 0) -> Iterator[str]:
    """The service, in threads, at the address that the block gets."""
    server = ThreadingHTTPServer(("127.0.0.1", port), Towns)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8099)
    with running(parser.parse_args().port) as address:
        print(f"towns are at {address}/towns/8010")
        with suppress(KeyboardInterrupt):
            Event().wait()
