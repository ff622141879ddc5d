"""Drops: the records that a run leaves out, by reason and operator.                       [P]

Nothing is dropped unseen: every place that leaves a record out counts it here. A worker warns
about what is new at most once a minute, and its run ends with the totals.

Owns   the counts, and which of them a warning has told.
Source Kafka Streams' dropped-records-total, which does not say where or why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

WARN_SECONDS: Final = 60.0
LISTED_MAX: Final = 10  # reasons in one warning


class Reason(Enum):
    """Why a record was left out. The value completes "… records"."""

    SKIP = 'skipped by on_error="skip"'
    DLQ = "sent to the dead letter topic"
    LATE = "too late for every window"
    LATE_KEPT = "too late for every window, sent on by late()"
    EXPIRED = "times too late for one of several windows"
    EXPIRED_ROW = "too old to be kept for later records of the other side"
    PAST_RETENTION = "older than the retention of a store that they were put into"
    NOT_LATEST = "of a versioned table that came after a newer one of their key"
    GONE = "that answered rows which have left their table since"
    NULL_KEY = "without a key"
    NULL_VALUE = "without a value"


class Drop(NamedTuple):
    """Records of one operator, left out for one reason."""

    reason: Reason
    operator: str


class Drops:
    """The counts of one run."""

    def __init__(self) -> None:
        self.counts: Counter[Drop] = Counter()
        self._told: Counter[Drop] = Counter()
        self._next_warning: float | None = None

    def add(self, reason: Reason, operator: str, records: int = 1) -> None:
        """Counts records that were left out."""
        if records:
            self.counts[Drop(reason, operator)] += records

    def warning(self, now: float) -> str | None:
        """Words for what was left out since the last ones; None when it is not time or nothing
        is new. `now` in seconds."""
        if not self.counts or (self._next_warning is not None and now < self._next_warning):
            return None
        counts = Counter(self.counts)  # tasks may count in another thread meanwhile
        new, self._told = counts - self._told, counts
        if not new:
            return None
        self._next_warning = now + WARN_SECONDS
        return _spell(new)

    def since(self, counts: Counter[Drop]) -> Drops:
        """What was left out since the counts were these."""
        new = Drops()
        new.counts = self.counts - counts
        return new

    def lines(self) -> list[str]:
        """A line for each reason and operator, the most frequent first."""
        return [
            f"{records:,} record{'s' if records > 1 else ''} {reason.value}, at {operator!r}"
            for (reason, operator), records in Counter(self.counts).most_common()
        ]

    def document(self) -> list[dict[str, Any]]:
        """The same for programs."""
        return [
            {"reason": reason.name.lower(), "operator": operator, "records": records}
            for (reason, operator), records in Counter(self.counts).most_common()
        ]

    def add_document(self, document: Iterable[Mapping[str, Any]]) -> None:
        """Adds what another process has counted."""
        for each in document:
            self.add(Reason[each["reason"].upper()], each["operator"], each["records"])


def _spell(counts: Counter[Drop]) -> str:
    parts = [
        f"{records:,} {reason.value} at {operator!r}"
        for (reason, operator), records in counts.most_common(LISTED_MAX)
    ]
    more = len(counts) - LISTED_MAX
    parts += [f"and {more} more reasons"] * (more > 0)
    return f"records left out: {'; '.join(parts)}"
