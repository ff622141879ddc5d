"""`kafkalite-streams reset`: makes an application start from the beginning.                [IO]

Owns   the words of the command; `kafkalite.streams.reset` does the work.
Fails  with one line and exit code 1: workers that run, an app file that is wrong.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from kafkalite.cli.completing import SERVERS_VARIABLE
from kafkalite.cli.output import emit, print_json

if TYPE_CHECKING:
    from kafkalite.core.types import TopicPartition
    from kafkalite.streams import Streams
    from kafkalite.streams.reset import Reset


class Begin(StrEnum):
    """The position of the inputs after a reset."""

    earliest = "earliest"
    latest = "latest"


BEGINS: Final[dict[Begin, Literal["earliest", "latest"]]] = {
    Begin.earliest: "earliest",
    Begin.latest: "latest",
}
BootstrapServers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        "-b",
        help="HOST:PORT[,…] of a broker. Default: a broker of its own over --data-dir.",
        envvar=SERVERS_VARIABLE,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Where a broker of its own keeps its log.", show_default="kafkalite-data"),
]
To = Annotated[
    Begin | None,
    typer.Option(help="Where every input begins. Default: where its source's offset_reset= says."),
]
StateDir = Annotated[
    Path | None, typer.Option(help="The state directory of the workers on this machine.")
]
Execute = Annotated[bool, typer.Option("--execute", help="Do it. Without: say what it would do.")]


def reset_application(
    streams: Streams,
    bootstrap_servers: str | None,
    data_dir: Path | None,
    to: Begin | None,
    state_dir: Path | None,
    *,
    execute: bool,
    json: bool,
) -> None:
    """Says what a reset would change, or does it."""
    with streams.broker(bootstrap_servers, data_dir) as address:
        place = state_dir or (None if streams.state_dir is None else Path(streams.state_dir))
        found = asyncio.run(_reset(streams, address, to, place, execute=execute))
    if json:
        print_json(_document(found, executed=execute))
    else:
        emit(_text(found, executed=execute))


async def _reset(
    streams: Streams, address: str, to: Begin | None, state_dir: Path | None, *, execute: bool
) -> Reset:
    from kafkalite.clients.cluster import Client
    from kafkalite.streams.reset import survey

    async with Client(address, client_id=f"{streams.application_id}-reset") as client:
        begin = None if to is None else BEGINS[to]
        found = await survey(client, streams.plan(), to=begin, state_dir=state_dir)
        if execute:
            await found.execute(client)
    return found


def _text(reset: Reset, *, executed: bool) -> str:
    application_id = reset.plan.application_id
    if reset.is_nothing:
        return f"{application_id}: there is nothing to reset"
    done = "is reset" if executed else "would be reset"
    lines = [f"{application_id} {done}:"]
    lines += [
        f"  offset  {_spell(tp)}: {reset.committed.get(tp, 'none')} -> "
        f"{reset.begin.get(tp, 'none')}"
        for tp in sorted({*reset.committed, *reset.begin})
    ]
    lines += [f"  topic   {topic}: deleted" for topic in reset.topics]
    lines += [f"  state   {reset.state_dir}: deleted"] * (reset.state_dir is not None)
    lines.append("Topics that it writes for others stay as they are.")
    if not executed:
        lines.append("Nothing has been changed. --execute does it.")
    return "\n".join(lines)


def _document(reset: Reset, *, executed: bool) -> dict[str, Any]:
    partitions = sorted({*reset.committed, *reset.begin})
    return {
        "application_id": reset.plan.application_id,
        "executed": executed,
        "offsets": [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "from": reset.committed.get(tp),
                "to": reset.begin.get(tp),
            }
            for tp in partitions
        ],
        "topics": list(reset.topics),
        "state_dir": None if reset.state_dir is None else str(reset.state_dir),
    }


def _spell(tp: TopicPartition) -> str:
    return f"{tp.topic}-{tp.partition}"
