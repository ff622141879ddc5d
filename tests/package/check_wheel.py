"""Installs a wheel where no compiler is, and uses it: `make wheels` ends with this.

    python tests/package/check_wheel.py dist/kafkalite-….whl

A fresh environment gets the wheel and what it requires. There the native codecs must load and a
broker must take a record; no web server may come along.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

USE = """
import asyncio, sys
import kafkalite
from kafkalite import EmbeddedBroker
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.clients.producer.producer import Producer
from kafkalite.compaction import loops
from kafkalite.core.protocol import checksum, record_codec, usual_requests
from kafkalite.core.types import TopicPartition
from kafkalite.serde import avro_columns, json_form, msgpack_form, vectors
from kafkalite.streams.local import ranks
from kafkalite.streams.local.operators import folding, matching, references
from kafkalite.streams.local.spans import native
from kafkalite.streams.local.state import row_table, segment_rows

assert kafkalite.__file__.startswith(sys.prefix), f"another kafkalite: {kafkalite.__file__}"
assert record_codec.NATIVE, "the wheel has no native record codec"
assert loops.NATIVE, "the wheel has no native log cleaner"
assert avro_columns.NATIVE, "the wheel has no native Avro"
others = (usual_requests, json_form, msgpack_form, vectors, folding, matching, references, native,
          row_table, segment_rows)
missing = [module.__name__ for module in others if not module.NATIVE]
assert not missing, f"the wheel has no native code for {missing}"
assert ranks._native is not None, "the wheel has no native merging"

async def round_trip(address):
    async with Producer(address) as producer:
        await (await producer.send("greetings", b"hello"))
    async with Consumer(address, auto_offset_reset="earliest") as consumer:
        partition = TopicPartition("greetings", 0)
        consumer.assign([partition])
        while not (found := await consumer.poll(1000)):
            pass
        return list(found[partition].values)

with EmbeddedBroker(sys.argv[1]) as broker:
    assert asyncio.run(round_trip(broker.bootstrap_servers)) == [b"hello"]
print(f"native record codec, log cleaner and Avro, CRC-32C by {checksum.IMPLEMENTATION}; a record "
      "went through a broker")
"""
LICENSE = "kafkalite-*.dist-info/licenses/LICENSE"


def run(command: list[str | Path], environ: dict[str, str], directory: str) -> str:
    """What a command prints; its failure is ours. Elsewhere than here, where the sources are."""
    done = subprocess.run(
        command,
        env=environ,
        cwd=directory,
        text=True,
        stdout=subprocess.PIPE,
        timeout=600,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))[:200]} ended with {done.returncode}\n{done.stdout}")
    return done.stdout


def main(wheel: Path) -> None:
    """Checks one wheel."""
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory, "venv")
        venv.create(home, with_pip=True)
        kept = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_", "REQUESTS_"))}
        no_compiler = {"CC": "/bin/false", "CXX": "/bin/false", "PATH": str(home / "bin")}
        environ = {**kept, **no_compiler, "HOME": directory, "LANG": "C.UTF-8"}
        python = home / "bin" / "python"
        run([python, "-m", "pip", "install", "--quiet", wheel.resolve()], environ, directory)
        print(run([python, "-c", USE, Path(directory, "data")], environ, directory).strip())
        (packages,) = home.glob("lib/python*/site-packages")
        assert list(packages.glob(LICENSE)), "the wheel has no license"
        servers = [name for name in ("uvicorn", "starlette") if (packages / name).exists()]
        assert not servers, f"a client installs {servers}"
    print(f"{wheel.name} is good")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
