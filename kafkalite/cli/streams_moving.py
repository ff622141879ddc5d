"""`kafkalite-streams export-state`: an application's state from Spark to the local engine.    [IO]

Owns   the words of the command, and a session of Spark while its state is read;
       `kafkalite.spark.topology.exporting` does the work.
Fails  with one line and exit code 1, which names the command that helps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kafkalite.cli.completing import SERVERS_VARIABLE
from kafkalite.cli.output import print_json
from kafkalite.errors import TopologyError

if TYPE_CHECKING:
    from kafkalite.spark.topology.checkpoint import Checkpoint
    from kafkalite.spark.topology.exporting import Exported
    from kafkalite.streams import Streams

Exports = Annotated[
    str, typer.Option("--checkpoint", help="The folder of the query's offsets and state.")
]
Servers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        "-b",
        help="HOST:PORT[,…] of a broker. Default: a broker of its own over --data-dir.",
        envvar=SERVERS_VARIABLE,
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(help="Where a broker of its own keeps its log.", show_default="kafkalite-data"),
]
Through = Annotated[
    str | None,
    typer.Option("--master", help="The Spark that reads the state.", show_default="local[*]"),
]


def export_to_local(
    streams: Streams,
    bootstrap_servers: str | None,
    data_dir: Path | None,
    location: str,
    master: str | None,
    *,
    json: bool,
) -> None:
    """Moves the state, and says what it was."""
    from kafkalite.spark.topology.checkpoint import Checkpoint

    name = streams.application_id
    with streams.broker(bootstrap_servers, data_dir) as servers:
        found = asyncio.run(_export(streams, servers, Checkpoint(location), master))
    if json:
        print_json(_document(name, found))
        return
    if found is None:
        typer.echo(f"{name}: the local engine holds the state already")
        return
    after = "before any batch" if found.batch is None else f"as of batch {found.batch}"
    typer.echo(
        f"{name}: the local engine holds the state, {after}: {found.tasks:,} tasks, {found.rows:,} "
        f"rows written, offsets of {len(found.offsets):,} partitions"
    )


async def _export(
    streams: Streams, servers: str, checkpoint: Checkpoint, master: str | None
) -> Exported | None:
    from kafkalite.clients.cluster import Client
    from kafkalite.spark.topology.exporting import export_state

    def read(batch: int) -> dict[str, Sequence[bytes]]:
        return _read_state(streams.application_id, checkpoint, batch, master)

    async with Client(servers, client_id=f"{streams.application_id}-export") as client:
        return await export_state(client, servers, streams.plan(), checkpoint, read)


def _read_state(
    name: str, checkpoint: Checkpoint, batch: int, master: str | None
) -> dict[str, Sequence[bytes]]:
    """The blobs of all tasks, read by a session of Spark that ends with this."""
    if not checkpoint.has_state:
        return {}
    try:
        from kafkalite.spark import session
    except ImportError as error:
        raise TopologyError(f"export-state needs PySpark: {error}") from error
    from kafkalite.spark.topology.statestore import read_blobs

    spark = session(name, master=master)
    try:
        return dict(read_blobs(spark, checkpoint.location, batch))
    finally:
        spark.stop()


def _document(name: str, found: Exported | None) -> dict[str, object]:
    if found is None:
        return {"application_id": name, "moved": False}
    return {
        "application_id": name,
        "moved": True,
        "batch": found.batch,
        "tasks": found.tasks,
        "rows": found.rows,
        "offsets": [
            {"topic": tp.topic, "partition": tp.partition, "offset": offset}
            for tp, offset in sorted(found.offsets.items())
        ],
    }
