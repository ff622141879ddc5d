"""`kafkalite-streams dlq`: dead letters of an application, counted, shown and sent again.    [IO]

Owns   the words of the commands; `kafkalite.streams.dead_letters` does the work.
Fails  with one line and exit code 1: an application without dead letters, a letter that is not
       there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kafkalite.cli.output import emit, print_json, print_table
from kafkalite.errors import SerdeError, TopologyError

if TYPE_CHECKING:
    from kafkalite.serde.registry_log import LogRegistry
    from kafkalite.streams import Streams
    from kafkalite.streams.dead_letters import Letter, Replayed

Topic = Annotated[
    str | None, typer.Option("--topic", help="Only letters about records of this topic.")
]
ErrorType = Annotated[
    str | None, typer.Option("--error", help="Only letters with this error, such as ValueError.")
]
Force = Annotated[
    bool, typer.Option("--force", help="Also letters that were replayed three times already.")
]
Where = Annotated[str, typer.Argument(help="PARTITION:OFFSET of a letter, as `dlq list` shows it.")]


def list_letters(streams: Streams, servers: str, *, json: bool) -> None:
    """Counts letters by topic, operator and error, with the last of each."""
    rows = asyncio.run(_counted(streams, servers))
    if json:
        print_json(rows)
        return
    headers = ["topic", "operator", "error", "letters", "last", "message"]
    print_table(headers, [list(row.values()) for row in rows])


async def _counted(streams: Streams, servers: str) -> list[dict[str, Any]]:
    from kafkalite.clients.cluster import Client
    from kafkalite.streams.dead_letters import letters, topic_of

    counts: Counter[tuple[str, str, str]] = Counter()
    last: dict[tuple[str, str, str], Letter] = {}
    async with Client(servers) as client:
        async for letter in letters(client, topic_of(streams.plan())):
            kind = (letter.topic, letter.story.get("operator", ""), letter.error)
            counts[kind] += 1
            last[kind] = letter
    return [
        {
            "topic": topic,
            "operator": operator,
            "error": error,
            "letters": count,
            "last": f"{last[topic, operator, error].at.partition}:"
            f"{last[topic, operator, error].at_offset}",
            "message": last[topic, operator, error].story.get("message", ""),
        }
        for (topic, operator, error), count in counts.most_common()
    ]


def show_letter(streams: Streams, servers: str, where: str, *, json: bool) -> None:
    """Prints one letter."""
    partition, _, offset = where.partition(":")
    if not (partition.isdigit() and offset.isdigit()):
        raise TopologyError(f"expected PARTITION:OFFSET of a letter, got {where!r}")
    from kafkalite.serde.registry_log import LogRegistry

    letter = asyncio.run(_find(streams, servers, int(partition), int(offset)))
    with LogRegistry(servers) as registry:  # not opened before a serde asks it
        key = _decoded(streams, letter, registry, is_key=True)
        value = _decoded(streams, letter, registry, is_key=False)
    document = {
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "operator": letter.story.get("operator", ""),
        "message": letter.story.get("message", ""),
        "replays": letter.replays,
        "timestamp": letter.timestamp,
        "key": key,
        "value": value,
        "headers": [[name, repr(data)] for name, data in letter.headers],
        "stacktrace": letter.story.get("stacktrace", ""),
    }
    if json:
        print_json(document)
        return
    for name, content in document.items():
        emit(f"{name + ':':<12}{content}")


async def _find(streams: Streams, servers: str, partition: int, offset: int) -> Letter:
    from kafkalite.clients.cluster import Client
    from kafkalite.streams.dead_letters import letters, topic_of

    async with Client(servers) as client:
        async for letter in letters(client, topic_of(streams.plan())):
            if (letter.at.partition, letter.at_offset) == (partition, offset):
                return letter
    raise TopologyError(f"there is no letter at {partition}:{offset}")


def _decoded(streams: Streams, letter: Letter, registry: LogRegistry, *, is_key: bool) -> str:
    """Key or value as the topology reads it, else its bytes."""
    from kafkalite.serde.serde import SerdeContext
    from kafkalite.streams.local.compile import compile_topology

    data = letter.key if is_key else letter.value
    for sub in compile_topology(streams.plan()):
        if (source := sub.source_of(letter.topic)) is not None:
            serde = source.key if is_key else source.value
            try:
                codec = serde.open(SerdeContext(registry, is_key, as_dicts=True))
                return repr(codec.deserialize(letter.topic, [data])[0])
            except (SerdeError, TopologyError):
                break
    return repr(data)


def replay_letters(
    streams: Streams,
    servers: str,
    topic: str | None,
    error: str | None,
    *,
    force: bool,
    execute: bool,
    json: bool,
) -> None:
    """Says what a replay would send, or sends it."""
    done = asyncio.run(_replay(streams, servers, topic, error, force=force, execute=execute))
    if json:
        print_json(
            {
                "executed": execute,
                "sent": dict(done.sent),
                "replayed_before": done.done_before,
                "failed_again": done.failed_again,
                "cut": done.cut,
            }
        )
        return
    emit("\n".join(_lines(streams.application_id, done, executed=execute)))


async def _replay(
    streams: Streams,
    servers: str,
    topic: str | None,
    error: str | None,
    *,
    force: bool,
    execute: bool,
) -> Replayed:
    from kafkalite.clients.cluster import Client
    from kafkalite.streams.dead_letters import replay

    async with Client(servers, client_id=f"{streams.application_id}-dlq") as client:
        return await replay(
            client, streams.plan(), topic=topic, error=error, force=force, execute=execute
        )


def _lines(application_id: str, done: Replayed, *, executed: bool) -> list[str]:
    word = "replayed" if executed else "would be replayed"
    lines = [f"{application_id}: {sum(done.sent.values())} letters {word}"]
    lines += [f"  into {topic}: {count}" for topic, count in sorted(done.sent.items())]
    if done.done_before:
        lines.append(f"  {done.done_before} were replayed before")
    if done.failed_again:
        lines.append(f"  {done.failed_again} failed again three times: --force replays them")
    if done.cut:
        lines.append(
            f"  {done.cut} are without their record: it did not fit, or the letter is foreign"
        )
    if not executed:
        lines.append("Nothing has been sent. --execute does it.")
    return lines
