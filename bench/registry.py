"""How long the schema registry in a broker's process takes, and what it costs in memory.

python bench/registry.py [COUNT]
"""

from __future__ import annotations

import http.client
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kafkalite.embedded import EmbeddedBroker

FIELDS = [{"name": f"field_{n}", "type": "string"} for n in range(20)]


def resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"process {pid} has no VmRSS")


def schema(number: int) -> dict[str, str]:
    return {"schema": json.dumps({"type": "record", "name": f"R{number}", "fields": FIELDS})}


def measure(what: str, count: int, call: Callable[[int], int]) -> None:
    times = []
    for number in range(count):
        begun = time.perf_counter()
        status = call(number)
        times.append((time.perf_counter() - begun) * 1000)
        assert status == 200, f"{what}: {status}"
    times.sort()
    print(f"{what:28} p50 {times[count // 2]:7.2f} ms   p99 {times[count * 99 // 100]:7.2f} ms")


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as directory, EmbeddedBroker(directory) as plain:
        time.sleep(1)
        alone = resident_mb(plain.pid)
    with (
        tempfile.TemporaryDirectory() as directory,
        EmbeddedBroker(directory, registry=True) as broker,
    ):
        assert broker.registry_url is not None
        host, _, port = broker.registry_url.removeprefix("http://").rpartition(":")
        connection = http.client.HTTPConnection(host, int(port))

        def call(method: str, path: str, body: Any = None) -> int:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.read()
            return response.status

        call("GET", "/subjects")
        at_rest = resident_mb(broker.pid)
        for what in ("register a new schema", "register a known schema"):
            measure(what, count, lambda n: call("POST", f"/subjects/s{n}/versions", schema(n)))
        measure("look a schema up", count, lambda n: call("POST", f"/subjects/s{n}", schema(n)))
        measure("schema by id", count, lambda n: call("GET", f"/schemas/ids/{n + 1}"))
        measure("latest version", count, lambda n: call("GET", f"/subjects/s{n}/versions/latest"))
        print(f"broker alone {alone:.0f} MB, with the registry {at_rest:.0f} MB, "
              f"with {count} schemas of 20 fields {resident_mb(broker.pid):.0f} MB")  # fmt: skip


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000)
