"""One GET request to another worker.                                                      [IO]

Owns   nothing: a connection lasts for one request.
Fails  with BrokerUnavailable where no answer comes, or none that is HTTP.
"""

from __future__ import annotations

import asyncio
from typing import Final

from kafkalite.errors import BrokerUnavailable

ANSWER_BYTES_MAX: Final = 64 << 20


async def get(address: str, path: str, seconds: float) -> tuple[int, dict[str, str], bytes]:
    """The status, the headers and the body of the answer of HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(seconds):
            answer = await _exchange(host.strip("[]"), int(port), address, path)
        head, _, body = answer.partition(b"\r\n\r\n")
        protocol, status, *_ = head.split(b" ", 2)
        if not protocol.startswith(b"HTTP/1."):
            raise ValueError(f"no HTTP: {protocol[:20]!r}")
        lines = (line.partition(b":") for line in head.split(b"\r\n")[1:])
        headers = {n.decode().lower(): v.decode().strip() for n, _, v in lines}
        return int(status), headers, body
    except (OSError, ValueError, asyncio.LimitOverrunError, TimeoutError) as error:
        why = str(error) or type(error).__name__
        raise BrokerUnavailable(f"the worker at {address} does not answer: {why}") from error


async def _exchange(host: str, port: int, address: str, path: str) -> bytes:
    """Everything that comes until the other side closes; HTTP/1.0 answers in one piece."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nhost: {address}\r\n\r\n".encode("latin-1"))
        answer = await reader.read(ANSWER_BYTES_MAX)
        while len(answer) < ANSWER_BYTES_MAX and (more := await reader.read(ANSWER_BYTES_MAX)):
            answer += more
        return answer
    finally:
        writer.close()
