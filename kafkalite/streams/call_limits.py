"""How the calls of an async function run: how many at once, for how long, how often.         [P]

Owns   the checks of these settings, and the pauses between tries.
Fails  with TopologyError, which names the operator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypedDict

from kafkalite.errors import TopologyError
from kafkalite.streams.durations import Duration, not_negative, positive, spell

CONCURRENCY_MAX: Final = 10_000
RETRIES_MAX: Final = 100
BACKOFF_MS_MAX: Final = 10_000  # a pause grows no further
CALL_MS_MAX: Final = 120_000  # a commit waits for a call and for those before it


@dataclass(frozen=True, slots=True)
class CallLimits:
    """How calls of one function run. `concurrency`: at once, of one task. `timeout_ms`: of a try.

    A call that fails is tried `retries` times more, after pauses that begin with `backoff_ms`.
    """

    concurrency: int
    timeout_ms: int
    retries: int = 0
    backoff_ms: int = 0

    def __str__(self) -> str:
        """For people: `100 at once, 10s each, 2 retries after 100ms`."""
        retries = f", {self.retries} retries after {spell(self.backoff_ms)}" if self.retries else ""
        return f"{self.concurrency} at once, {spell(self.timeout_ms)} each{retries}"

    def pause_ms(self, tries: int) -> int:
        """The pause after so many tries: twice the one before, up to a bound."""
        doubled = self.backoff_ms << min(tries - 1, BACKOFF_MS_MAX.bit_length())
        return min(doubled, max(BACKOFF_MS_MAX, self.backoff_ms))

    @property
    def longest_ms(self) -> int:
        """How long a call may take, all tries and pauses together."""
        pauses = sum(self.pause_ms(tries) for tries in range(1, self.retries + 1))
        return (self.retries + 1) * self.timeout_ms + pauses


class CallOptions(TypedDict, total=False):
    """What `map_async` takes of these."""

    concurrency: int
    timeout: Duration
    retries: int
    backoff: Duration


def limits_of(options: CallOptions, operator: str) -> CallLimits:
    """The limits that a user gives, or their defaults."""
    limits = CallLimits(
        _between(1, options.get("concurrency", 100), CONCURRENCY_MAX, f"{operator}: concurrency"),
        positive(options.get("timeout", "10s"), f"{operator}: timeout"),
        _between(0, options.get("retries", 0), RETRIES_MAX, f"{operator}: retries"),
        not_negative(options.get("backoff", "100ms"), f"{operator}: backoff"),
    )
    if limits.longest_ms > CALL_MS_MAX:
        raise TopologyError(
            f"{operator}: a call could take {spell(limits.longest_ms)}, all tries and pauses "
            f"together; commits wait for it, so at most {spell(CALL_MS_MAX)} is possible: "
            "give it a shorter timeout= or fewer retries="
        )
    return limits


def _between(least: int, given: object, most: int, what: str) -> int:
    if type(given) is not int or not least <= given <= most:
        raise TopologyError(f"{what}: expected {least} to {most:,}, got {given!r}")
    return given
