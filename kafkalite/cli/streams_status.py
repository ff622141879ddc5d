"""`kafkalite-streams status`: workers, tasks and lags of an application that runs.         [IO]

Owns   the words of the command; `kafkalite.streams.status` looks.
Fails  with one line and exit code 1: an app file that is wrong, a broker that does not answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kafkalite.cli.output import counted, emit, print_json, print_table

if TYPE_CHECKING:
    from kafkalite.streams import Streams
    from kafkalite.streams.status import Status

CLEAR: Final = "\x1b[2J\x1b[H"
Watch = Annotated[bool, typer.Option("--watch", help="Look again and again, until Ctrl-C.")]
Interval = Annotated[
    float, typer.Option("--interval", min=0.1, help="Seconds between two looks of --watch.")
]


def show_status(
    streams: Streams, bootstrap_servers: str, *, watch: bool, interval: float, json: bool
) -> None:
    """Prints the status once, or again and again."""
    asyncio.run(_show(streams, bootstrap_servers, watch=watch, interval=interval, json=json))


async def _show(
    streams: Streams, bootstrap_servers: str, *, watch: bool, interval: float, json: bool
) -> None:
    from kafkalite.clients.cluster import Client
    from kafkalite.streams.status import look

    async with Client(bootstrap_servers, client_id=f"{streams.application_id}-status") as client:
        while True:
            status = await look(client, streams.plan())
            if json:
                print_json(status.document())
            else:
                if watch:
                    emit(CLEAR)
                _print(status)
            if not watch:
                return
            await asyncio.sleep(interval)


def _print(status: Status) -> None:
    document = status.document()
    if status.workers:
        emit(
            f"{status.application_id}: {counted(len(status.workers), 'worker')}, lag {status.lag:,}"
        )
    else:
        emit(f"{status.application_id} does not run; lag {status.lag:,}")
    for worker in status.workers:
        for reason in worker.reasons:
            emit(f"{worker.name}: {reason}")
    if status.workers:
        print_table(
            ("worker", "state", "tasks", "records", "records/s"),
            [
                (each["worker"], each["state"], each["tasks"], each["records"],
                 each["records_per_second"])
                for each in document["workers"]
            ],
        )  # fmt: skip
    print_table(
        ("task", "worker", "lag", "records", "records/s", "stores"),
        [
            (
                each["task"],
                each["worker"],
                each["lag"],
                each["records"],
                each["records_per_second"],
                ", ".join(each["stores"]),
            )
            for each in document["tasks"]
        ],
    )
