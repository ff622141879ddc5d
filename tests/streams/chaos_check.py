"""What chaos_app.py is given, and what it must have made of it, in plain Python.

Exactly once must equal the reference exactly, at least once must lose nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter

from chaos_app import WINDOW_MS

from kafkalite.core.types import Columns

PARTITIONS = 4
OUTPUTS = ("copy", "counts", "windows", "sums")


class Checked(ABC):
    """The records of one application, and its outputs."""

    def __init__(self, guarantee: str) -> None:
        self.guarantee = guarantee
        self.sent: list[tuple[int, int, str]] = []  # partition, timestamp, word
        self.next_ms = 0

    @abstractmethod
    def read(self, what: str) -> Columns:
        """All that is committed of an output."""

    def more(self, count: int) -> dict[int, Columns]:
        """`count` more records of each partition, in the order of their times."""
        times = list(range(self.next_ms, self.next_ms + count))
        self.next_ms += count
        made: dict[int, Columns] = {}
        for p in range(PARTITIONS):
            words = [f"{'abcdefg'[(t + p) % 7]}{t}" for t in times]
            self.sent += [(p, t, word) for t, word in zip(times, words, strict=True)]
            values: list[bytes | None] = [word.encode() for word in words]
            made[p] = Columns([b"k%d" % p] * count, values, times)
        return made

    def check(self) -> None:
        """Compares all outputs with plain Python."""
        exact = self.guarantee == "exactly_once"
        copied = Counter(value.decode() for value in self.read("copy").values if value)
        expected = Counter(word for _, _, word in self.sent)
        assert copied == expected if exact else copied.keys() == expected.keys()
        self.check_counts(exact)
        self.check_sums(exact)
        self.check_windows(exact)

    def check_counts(self, exact: bool) -> None:
        """How many words of each initial."""
        initials = Counter(word[0] for _, _, word in self.sent)
        counts = self.last("counts")
        assert {key.decode(): n for key, n in counts.items()} == initials or not exact
        assert all(counts[i.encode()] >= n for i, n in initials.items())

    def check_sums(self, exact: bool) -> None:
        """Windows by initial, open ones too."""
        sums = Counter((word[0], t - t % WINDOW_MS) for _, t, word in self.sent)
        found = {(key[:-8].decode(), start_of(key)): n for key, n in self.last("sums").items()}
        assert found == sums or not exact
        assert all(found[window] >= n for window, n in sums.items())

    def check_windows(self, exact: bool) -> None:
        """Each window that is closed, once under exactly once."""
        ended = self.next_ms - 1 - WINDOW_MS  # of the last record that closes one
        windows = Counter(
            (b"k%d" % p, start) for p, t, _ in self.sent if (start := t - t % WINDOW_MS) <= ended
        )
        out = self.read("windows")
        keys = [(key[:-8], start_of(key)) for key in out.keys if key]
        assert set(keys) == set(windows)
        pairs = zip(keys, out.values, strict=True)
        rows = sorted((window, int.from_bytes(n or b"", "big")) for window, n in pairs)
        assert not exact or rows == sorted(windows.items())
        assert all(n >= windows[window] for window, n in rows)

    def last(self, what: str) -> dict[bytes, int]:
        """The last value of each key."""
        out = self.read(what)
        pairs = zip(out.keys, out.values, strict=True)
        return {key or b"": int.from_bytes(value or b"", "big") for key, value in pairs}


def start_of(key: bytes) -> int:
    """Where a window begins."""
    return int.from_bytes(key[-8:], "big")
