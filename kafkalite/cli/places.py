"""Where in a log: `beginning`, `end`, an offset, the last N records, or a time.             [P]

    beginning, earliest   the first record there is
    end, latest           after the last record
    42                    offset 42
    -10                   the last ten of each partition
    -15m                  records of the last fifteen minutes (ms, s, m, h, d, w)
    2024-05-01T12:00      a time, ISO 8601; without a zone it is local time
    @1714564800000        a time, epoch ms

Owns   the text of such places and the offsets they stand for within a log.
Fails  with typer.BadParameter for text that names no place; with ConfigError, naming partition and
       range, for an offset outside its log.
Source kcat -o, rpk topic consume --offset: the same ideas, one spelling.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import typer

from kafkalite.core.types import TopicPartition
from kafkalite.errors import ConfigError

if TYPE_CHECKING:
    from kafkalite.clients.admin.client import Admin

UNIT_MS: Final = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
DURATION: Final = re.compile(r"(\d+)(ms|s|m|h|d|w)", re.ASCII)
OFFSET_MAX: Final = (1 << 63) - 1
EXPECTED: Final = "beginning, end, an offset, -N, -15m, an ISO time or @EPOCH_MS"


class Kind(StrEnum):
    """How a place is given."""

    BEGINNING = "beginning"
    END = "end"
    OFFSET = "offset"
    LAST = "last"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a log; `number` is the offset, how many records, or epoch ms."""

    kind: Kind
    number: int = 0


WORDS: Final = {
    "beginning": Place(Kind.BEGINNING),
    "earliest": Place(Kind.BEGINNING),
    "end": Place(Kind.END),
    "latest": Place(Kind.END),
}
BEGINNING: Final = WORDS["beginning"]
END: Final = WORDS["end"]


def parse_duration_ms(text: str, flag: str) -> int:
    """`250ms`, `15m` and the like in ms."""
    match = DURATION.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(
            f"'{text}' is not a duration, such as 250ms or 15m", param_hint=flag
        )
    return int(match[1]) * UNIT_MS[match[2]]


def parse_place(text: str, flag: str, now_ms: int) -> Place:
    """The place that `text` names."""
    text = text.strip()
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    number = text.removeprefix("-").removeprefix("@")
    if number.isascii() and number.isdigit() and int(number) <= OFFSET_MAX:
        if text == number:
            return Place(Kind.OFFSET, int(number))
        if text == f"-{number}":
            return Place(Kind.LAST, int(number))
        if text == f"@{number}":
            return Place(Kind.TIME, int(number))
    ago = DURATION.fullmatch(text.removeprefix("-")) if text.startswith("-") else None
    if ago is not None:
        return Place(Kind.TIME, max(0, now_ms - int(ago[1]) * UNIT_MS[ago[2]]))
    time_ms = parse_time_ms(text)
    if time_ms is None:
        raise typer.BadParameter(f"'{text}' is not a place: give {EXPECTED}", param_hint=flag)
    return Place(Kind.TIME, time_ms)


def parse_time_ms(text: str) -> int | None:
    """An ISO 8601 time as epoch ms; None where it is none, or before 1970."""
    if len(text) < len("2024-05-01"):
        return None
    try:
        when = datetime.fromisoformat(text).astimezone()
        time_ms = round(when.timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        return None
    return time_ms if time_ms >= 0 else None


@dataclass(frozen=True, slots=True)
class Bounds:
    """The first offset of each partition, and the end of its readable records."""

    beginnings: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]

    def check(self, partition: TopicPartition, offset: int) -> int:
        """`offset` if it lies within the log or at its end; ConfigError."""
        first, end = self.beginnings[partition], self.ends[partition]
        if not first <= offset <= end:
            raise ConfigError(
                f"{partition}: offset {offset} is outside the log, which has {first} to {end}"
            )
        return offset

    def clamp(self, partition: TopicPartition, offset: int) -> int:
        """The offset nearest to `offset` that lies within the log."""
        return min(max(offset, self.beginnings[partition]), self.ends[partition])


async def bounds_of(
    admin: Admin, partitions: Iterable[TopicPartition], *, committed: bool = False
) -> Bounds:
    """The bounds of these logs now; with `committed`, up to the last stable offset."""
    wanted = list(partitions)
    level = "read_committed" if committed else "read_uncommitted"
    return Bounds(
        await admin.beginning_offsets(wanted),
        await admin.end_offsets(wanted, isolation_level=level),  # type: ignore[arg-type]
    )


async def offsets_at(
    admin: Admin, place: Place, bounds: Bounds, *, strict: bool = True
) -> dict[TopicPartition, int]:
    """The offset of a place in each log within `bounds`.

    A time comes to the first record at or after it, or the end. An offset outside of a log is
    refused if `strict`, else moved into it.
    """
    ends = bounds.ends
    if place.kind is Kind.BEGINNING:
        return dict(bounds.beginnings)
    if place.kind is Kind.END:
        return dict(ends)
    if place.kind is Kind.LAST:
        return {tp: bounds.clamp(tp, end - place.number) for tp, end in ends.items()}
    if place.kind is Kind.OFFSET:
        within = bounds.check if strict else bounds.clamp
        return {tp: within(tp, place.number) for tp in ends}
    found = await admin.list_offsets(dict.fromkeys(ends, place.number))
    return {
        tp: ends[tp] if there is None else bounds.clamp(tp, there.offset)
        for tp, there in found.items()
    }
