"""The common parts of the commands' flags: spelling, help and parsing.                     [IO]

Fails  with typer.BadParameter (exit code 2), naming the flag's value and the expected form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from kafkalite.cli.completing import SERVERS, SERVERS_VARIABLE
from kafkalite.core.types import TopicPartition

PARTITION_MAX: Final = (1 << 31) - 1
HELP_WIDTH_MAX: Final = 100  # columns
SIZE_UNITS: Final = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
BINARY_UNITS: Final = {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}

BOOTSTRAP: Final = SERVERS
Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap-servers",
        "-b",
        help="HOST:PORT[,…] of a broker.",
        envvar=SERVERS_VARIABLE,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check the request, and change nothing.")]
Partitions = Annotated[
    list[str] | None,
    typer.Option("--partition", "-p", help="Only these partitions: 3 or 0,2 or 0-5."),
]


def program(help_: str, **more: Any) -> typer.Typer:
    """A tree of commands, or a part of one. Help is plain text: names of flags are never cut,
    however narrow the terminal, and examples can be pasted."""
    return typer.Typer(
        help=help_,
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings={
            "max_content_width": HELP_WIDTH_MAX,
            "help_option_names": ["--help", "-h"],
        },
        **more,
    )


def examples(*lines: str) -> str:
    """The end of a command's help: each example on one line, which is never wrapped."""
    return "\n".join(["\b", "Examples:", *(f"  $ {line}" for line in lines)])


def parse_pairs(given: Iterable[str] | None, flag: str) -> dict[str, str]:
    """KEY=VALUE entries as a dict."""
    pairs: dict[str, str] = {}
    for entry in given or ():
        name, equals, value = entry.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"'{entry}' is not KEY=VALUE", param_hint=flag)
        pairs[name.strip()] = value
    return pairs


def parse_partitions(given: Iterable[str] | None, flag: str = "--partition") -> list[int] | None:
    """`0,2`, `0-5` and the like as numbers, ascending; None where nothing is given."""
    if not given:
        return None
    numbers: set[int] = set()
    for part in ",".join(given).split(","):
        first, dash, last = part.strip().partition("-")
        bounds = [first, last if dash else first]
        if not all(bound.isascii() and bound.isdigit() for bound in bounds):
            raise typer.BadParameter(
                f"'{part}' is not a partition, such as 3 or 0-5", param_hint=flag
            )
        low, high = map(int, bounds)
        if low > high or high > PARTITION_MAX or high - low > 1_000_000:
            raise typer.BadParameter(f"'{part}' is not a range of partitions", param_hint=flag)
        numbers.update(range(low, high + 1))
    return sorted(numbers)


def parse_topic_partitions(given: Iterable[str] | None, flag: str) -> dict[str, list[int] | None]:
    """`orders` (all partitions) and `orders:0,2` by topic."""
    chosen: dict[str, list[int] | None] = {}
    for entry in given or ():
        topic, colon, numbers = entry.partition(":")
        if not topic:
            raise typer.BadParameter(
                f"'{entry}' is not TOPIC or TOPIC:PARTITION[,…]", param_hint=flag
            )
        chosen[topic] = parse_partitions([numbers], flag) if colon else None
    return chosen


def parse_topic_partition(text: str, flag: str) -> TopicPartition:
    """`orders:3` or, as logs and messages have it, `orders-3`."""
    topic, mark, number = text.rpartition(":" if ":" in text else "-")
    if not (topic and mark and number.isascii() and number.isdigit()):
        raise typer.BadParameter(f"'{text}' is not TOPIC:PARTITION", param_hint=flag)
    return TopicPartition(topic, int(number))


def parse_size(text: str, flag: str) -> int:
    """Bytes: 1000, 64k, 1M, 16Ki, 1Mi (a final B is allowed)."""
    plain = text.strip().lower().removesuffix("b")
    number = plain.rstrip("kmgi")
    factor = {**SIZE_UNITS, **BINARY_UNITS}.get(plain[len(number) :])
    if factor is None or not (number.isascii() and number.isdigit()):
        raise typer.BadParameter(
            f"'{text}' is not a size, such as 512, 64k or 1Mi", param_hint=flag
        )
    return int(number) * factor


def no_such_partition(topic: str, count: int, number: int) -> str:
    """The message about a partition of a topic that has only `count`."""
    there = "only partition 0" if count == 1 else f"partitions 0 to {count - 1}"
    return f"topic {topic} has {there}, not {number}"


def choose(
    partitions_of: Mapping[str, int], wanted: Sequence[int] | None, flag: str = "--partition"
) -> list[TopicPartition]:
    """The wanted partitions, or all, of topics with these partition counts."""
    chosen = []
    for topic, count in partitions_of.items():
        for number in range(count) if wanted is None else wanted:
            if number >= count:
                raise typer.BadParameter(no_such_partition(topic, count, number), param_hint=flag)
            chosen.append(TopicPartition(topic, number))
    return chosen
