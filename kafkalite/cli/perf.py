"""`kafkalite perf`: how fast a broker writes and reads, measured with our columnar clients.   [IO]

Works on any broker that speaks the protocol. The figures are those of broker and client together:
give the client a core of its own where that matters.

Fails  with one line and exit code 1: an unknown topic, a broker that goes away.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from kafkalite.cli import SIGNALLED
from kafkalite.cli.options import (
    BOOTSTRAP,
    AsJson,
    Bootstrap,
    Partitions,
    choose,
    examples,
    parse_partitions,
    parse_size,
    program,
)
from kafkalite.cli.output import CLIENT_ID, counted, emit, print_json
from kafkalite.cli.produce import Acks, Codec
from kafkalite.cli.progress import Progress
from kafkalite.cli.refusals import explaining

if TYPE_CHECKING:
    from kafkalite.cli.standard_io import Stop
    from kafkalite.clients.producer.producer import Producer
    from kafkalite.core.types import Columns

cli = program("Measure how fast a broker writes and reads.")

RECORDS: Final = 1_000_000
CHUNK_BYTES: Final = 1 << 20
CHUNK_RECORDS_MAX: Final = 10_000
CHUNKS_PER_SECOND: Final = 100  # at a set rate, records are handed in so often
POLL_MS: Final = 200
IDLE_SECONDS_MAX: Final = 10.0
PERCENTILES: Final = (50.0, 95.0, 99.0, 99.9)
MB: Final = 1_000_000

RecordSize = Annotated[str, typer.Option(help="The size of a value.")]
Count = Annotated[int, typer.Option("--records", "-n", min=1, help="How many records to send.")]
Rate = Annotated[int | None, typer.Option(min=1, help="At most this many records per second.")]
AcksOption = Annotated[
    Acks, typer.Option(help="Replicas that acknowledge a batch: all, 1 (the leader) or 0.")
]
Compression = Annotated[
    Codec,
    typer.Option(
        "--compression", "-z", help="How batches are compressed: none, gzip, snappy, lz4, zstd."
    ),
]
KeySize = Annotated[
    int, typer.Option(min=0, max=100, help="The size of a key; 0: records without keys.")
]


@dataclass(frozen=True, slots=True)
class Load:
    """The load to send."""

    topic: str
    records: int
    record_bytes: int
    key_bytes: int
    rate: int | None
    acks: Literal["all", 1, 0]
    compression: str
    batch_bytes: int
    linger_ms: float


@cli.command(
    epilog=examples(
        "kafkalite perf produce bench --records 5000000 --record-size 100",
        "kafkalite perf produce bench --rate 1000 --records 10000 --linger-ms 0",
        "kafkalite perf produce bench -z lz4 --batch-size 128Ki --acks 1 --json",
    )
)
def produce(
    topic: Annotated[str, typer.Argument(help="The topic; it must exist.")],
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    records: Count = RECORDS,
    record_size: RecordSize = "100",
    key_size: KeySize = 0,
    rate: Rate = None,
    acks: AcksOption = Acks.all,
    compression: Compression = Codec.none,
    batch_size: Annotated[str, typer.Option(help="The size of a batch.")] = "128Ki",
    linger_ms: Annotated[
        float, typer.Option(min=0, help="Milliseconds that a batch waits for more.")
    ] = 5,
    json: AsJson = False,
) -> None:
    """Send records, and print rate and latency.

    Latency is the time from handing in a record to its acknowledgement, for one record per piece.
    """
    load = Load(
        topic, records, parse_size(record_size, "--record-size"), key_size, rate,
        "all" if acks is Acks.all else 1 if acks is Acks.leader else 0,
        compression.value, parse_size(batch_size, "--batch-size"), linger_ms,
    )  # fmt: skip
    summary, ended_by = asyncio.run(_produce(bootstrap_servers, load, show=not json))
    _print(summary, json)
    if ended_by is not None:
        raise typer.Exit(SIGNALLED + ended_by)


async def _produce(
    bootstrap_servers: str, load: Load, *, show: bool
) -> tuple[dict[str, Any], int | None]:
    from kafkalite.cli.standard_io import Stop
    from kafkalite.clients.admin.client import Admin
    from kafkalite.clients.cluster import Client
    from kafkalite.clients.producer.producer import Producer

    async with Client(bootstrap_servers, client_id=CLIENT_ID) as client:
        admin = Admin(client)
        async with explaining(admin, bootstrap_servers, topics=[load.topic]):
            await admin.describe_topics([load.topic])
        producer = Producer(
            client,
            acks=load.acks,
            compression=load.compression,
            batch_bytes=load.batch_bytes,
            linger_ms=load.linger_ms,
        )
        total = load.records * load.record_bytes
        with Stop().on_signals() as stop, Progress(total, enabled=show) as progress:
            async with producer:
                sender = Sender(producer, load)
                await sender.run(stop, progress)
        return sender.summary(), stop.signal


class Sender:
    """Hands records in by the piece, and times one of each piece."""

    def __init__(self, producer: Producer, load: Load) -> None:
        self._producer, self._load = producer, load
        self._piece = _piece_records(load)
        self._values = _values(self._piece, load.record_bytes)
        self._sent = 0
        self._seconds = 0.0
        self._latencies_ms: list[float] = []

    async def run(self, stop: Stop, progress: Progress) -> None:
        """Sends the load, at the rate wanted."""
        load, started = self._load, time.perf_counter()
        while self._sent < load.records and not stop.event.is_set():
            if load.rate is not None:
                early = started + self._sent / load.rate - time.perf_counter()
                if early > 0:
                    await asyncio.sleep(early)
            count = min(self._piece, load.records - self._sent)
            await self._hand_in(count)
            self._sent += count
            progress.show(self._sent * load.record_bytes, self._sent)
        await self._producer.flush()
        self._seconds = time.perf_counter() - started

    async def _hand_in(self, count: int) -> None:
        """Sends all but one as a column, and one by itself: its future gives the latency."""
        begun = time.perf_counter()
        if count > 1:
            columns = self._columns(count - 1)
            await self._producer.send_columns(self._load.topic, columns)
        key = None if not self._load.key_bytes else self._key(self._sent + count - 1)
        future = await self._producer.send(self._load.topic, self._values[0], key)
        future.add_done_callback(
            lambda _: self._latencies_ms.append((time.perf_counter() - begun) * 1000)
        )

    def _columns(self, count: int) -> Columns:
        from kafkalite.core.types import Columns

        keys: list[bytes | None] = [None] * count
        if self._load.key_bytes:
            keys = [self._key(self._sent + i) for i in range(count)]
        now_ms = time.time_ns() // 1_000_000
        return Columns(keys, self._values[:count], [now_ms] * count)

    def _key(self, number: int) -> bytes:
        return b"%0*d" % (self._load.key_bytes, number % 10**self._load.key_bytes)

    def summary(self) -> dict[str, Any]:
        """The figures."""
        size = self._sent * (self._load.record_bytes + self._load.key_bytes)
        return {
            "topic": self._load.topic,
            **_rates(self._sent, size, self._seconds),
            "latency_ms": _percentiles(self._latencies_ms),
            "latency_samples": len(self._latencies_ms),
        }


def _piece_records(load: Load) -> int:
    """How many records are handed in at once."""
    most = max(1, min(CHUNK_RECORDS_MAX, CHUNK_BYTES // max(1, load.record_bytes)))
    if load.rate is None:
        return most
    return max(1, min(most, load.rate // CHUNKS_PER_SECOND))


def _values(count: int, size: int) -> list[bytes]:
    """Values that differ, and compress about as well as text does."""
    noise = os.urandom(max(size, 1) // 2 + count + 1).hex().encode()
    return [noise[i : i + size] for i in range(count)]


# ---- consume ------------------------------------------------------------------------------------


@cli.command(
    epilog=examples(
        "kafkalite perf consume bench --records 5000000", "kafkalite perf consume bench --json"
    )
)
def consume(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    records: Annotated[
        int | None,
        typer.Option("--records", "-n", min=1, help="Stop after this many records. Default: all."),
    ] = None,
    partition: Partitions = None,
    check_crcs: Annotated[bool, typer.Option(help="Check the CRC of every batch.")] = True,
    json: AsJson = False,
) -> None:
    """Read records from the beginning, and print rate and latency.

    Latency is the time of polls that returned records: waiting for the broker, and decoding.
    """
    numbers = parse_partitions(partition)
    summary, ended_by = asyncio.run(
        _consume(bootstrap_servers, topic, records, numbers, check_crcs, show=not json)
    )
    _print(summary, json)
    if ended_by is not None:
        raise typer.Exit(SIGNALLED + ended_by)


async def _consume(
    bootstrap_servers: str,
    topic: str,
    wanted: int | None,
    numbers: list[int] | None,
    check_crcs: bool,
    *,
    show: bool,
) -> tuple[dict[str, Any], int | None]:
    from kafkalite.cli.standard_io import Stop
    from kafkalite.clients.admin.client import Admin
    from kafkalite.clients.cluster import Client
    from kafkalite.clients.consumer.consumer import Consumer

    async with Client(bootstrap_servers, client_id=CLIENT_ID) as client:
        admin = Admin(client)
        async with explaining(admin, bootstrap_servers, topics=[topic]):
            (found,) = await admin.describe_topics([topic])
        partitions = choose({topic: found.partition_count}, numbers)
        begins = await admin.beginning_offsets(partitions)
        ends = await admin.end_offsets(partitions)
        async with Consumer(client, check_crcs=check_crcs) as consumer:
            consumer.assign(partitions)
            consumer.seek_to_beginning(partitions)
            there = sum(ends[tp] - begins[tp] for tp in partitions)
            with Stop().on_signals() as stop, Progress(None, enabled=show) as progress:
                reader = Receiver(min(there, wanted or there))
                await reader.run(consumer, stop, progress)
    return {"topic": topic, **reader.summary()}, stop.signal


class Receiver:
    """Polls, and counts."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._records = self._bytes = 0
        self._seconds = self._first_seconds = 0.0
        self._polls_ms: list[float] = []

    async def run(self, consumer: Any, stop: Stop, progress: Progress) -> None:
        """Reads until enough records came, or none came for ten seconds.

        The number to read is counted by offsets, and those of compacted records and of markers
        never come.
        """
        started = last = time.perf_counter()
        while self._records < self._wanted and not stop.event.is_set():
            begun = time.perf_counter()
            polled = await consumer.poll(POLL_MS)
            now = time.perf_counter()
            if not polled:
                if now - last > IDLE_SECONDS_MAX:
                    break
                continue
            if not self._records:
                self._first_seconds = now - started
            last = now
            self._polls_ms.append((now - begun) * 1000)
            for columns in polled.values():
                self._records += len(columns)
                self._bytes += sum(map(len, filter(None, columns.values)))
                self._bytes += sum(map(len, filter(None, columns.keys)))
            progress.show(self._bytes, self._records)
        self._seconds = last - started

    def summary(self) -> dict[str, Any]:
        """The figures."""
        return {
            **_rates(self._records, self._bytes, self._seconds),
            "first_record_ms": round(self._first_seconds * 1000, 3),
            "latency_ms": _percentiles(self._polls_ms),
            "latency_samples": len(self._polls_ms),
        }


# ---- figures ------------------------------------------------------------------------------------


def _rates(records: int, size: int, seconds: float) -> dict[str, Any]:
    per_second = 1 / seconds if seconds else 0.0
    return {
        "records": records,
        "bytes": size,
        "seconds": round(seconds, 6),
        "records_per_second": round(records * per_second, 1),
        "mb_per_second": round(size / MB * per_second, 3),
    }


def _percentiles(samples: list[float]) -> dict[str, float | None]:
    """By nearest rank; None without a sample."""
    ordered = sorted(samples)
    summary: dict[str, float | None] = {}
    for percent in PERCENTILES:
        rank = max(0, -(-len(ordered) * percent // 100) - 1)
        summary[f"p{percent:g}"] = round(ordered[int(rank)], 3) if ordered else None
    summary["max"] = round(ordered[-1], 3) if ordered else None
    return summary


def _print(summary: dict[str, Any], json: bool) -> None:
    if json:
        print_json(summary)
        return
    emit(
        f"{counted(summary['records'], 'record')}, {summary['bytes'] / MB:,.1f} MB in "
        f"{summary['seconds']:.2f} s: "
        f"{summary['records_per_second']:,.0f} records/s, {summary['mb_per_second']:,.1f} MB/s"
    )
    latencies = ", ".join(
        f"{name} {value:.2f} ms"
        for name, value in summary["latency_ms"].items()
        if value is not None
    )
    emit(f"latency ({summary['latency_samples']:,} samples): {latencies or 'none'}")
