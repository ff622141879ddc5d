from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.types import Windowed
from kafkalite.errors import ConfigError, SerdeError
from kafkalite.serde import SerdeContext, int64, string, windowed
from kafkalite.serde.windowed import Size

CONTEXT = SerdeContext(is_key=True)
times = st.integers(0, 2**62)


def test_time_windows_have_the_bytes_of_kafkas_serializer() -> None:
    codec = windowed(string(), size=10).open(CONTEXT)
    data = b"k\0\0\0\0\0\0\1\2"
    assert codec.serialize("t", [Windowed("k", 258, 268), None]) == [data, None]
    assert codec.deserialize("t", [data, None]) == [Windowed("k", 258, 268), None]


def test_sessions_have_the_bytes_of_kafkas_serializer_end_first() -> None:
    codec = windowed(string()).open(CONTEXT)
    data = b"k\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\1"
    assert codec.serialize("t", [Windowed("k", 1, 2), None]) == [data, None]
    assert codec.deserialize("t", [data, None]) == [Windowed("k", 1, 2), None]


@given(st.lists(st.none() | st.tuples(st.text(), times)), st.integers(1, 10**9))
def test_time_windows_come_back(pairs: list[Any], size: int) -> None:
    column = [pair and Windowed(pair[0], pair[1], pair[1] + size) for pair in pairs]
    codec = windowed(string(), size).open(CONTEXT)
    assert codec.deserialize("t", codec.serialize("t", column)) == column


@given(st.lists(st.none() | st.tuples(st.integers(-9, 9), times, times)))
def test_sessions_come_back(parts: list[Any]) -> None:
    column = [part and Windowed(*part) for part in parts]
    codec = windowed(int64()).open(CONTEXT)
    assert codec.deserialize("t", codec.serialize("t", column)) == column


@pytest.mark.parametrize(
    ("window", "reason"),
    [
        ("k", "Windowed expected, got str"),
        (("k", 0, 10), "Windowed expected, got tuple"),
        (Windowed(None, 0, 10), "the key in the window is None"),
        (Windowed("k", 0, 11), "a window of 11 ms, not 10"),
        (Windowed("k", 0.0, 10), "is no time in epoch milliseconds"),
        (Windowed("k", 2**63, 10), "is no time in epoch milliseconds"),
        (Windowed(7, 0, 10), "str expected, got int"),
    ],
    ids=str,
)
def test_what_is_no_such_window_is_refused(window: Any, reason: str) -> None:
    with pytest.raises(SerdeError, match=reason) as caught:
        windowed(string(), 10).open(CONTEXT).serialize("t", [None, window])
    assert caught.value.index == 1


def test_bytes_too_short_for_the_times_are_refused() -> None:
    with pytest.raises(SerdeError, match="7 bytes, expected 8 or more") as caught:
        windowed(string(), 10).open(CONTEXT).deserialize("t", [None, b"1234567"])
    assert caught.value.index == 1
    with pytest.raises(SerdeError, match="15 bytes, expected 16 or more"):
        windowed(string()).open(CONTEXT).deserialize("t", [b"123456789012345"])


@pytest.mark.parametrize(
    "size", [3_600_000, "1h", "60m", "3600s", "3600000ms", "3600000", timedelta(hours=1)]
)
def test_sizes_are_durations(size: Size) -> None:
    assert windowed(string(), size) == windowed(string(), 3_600_000)
    assert repr(windowed(string(), size)) == "windowed(string(), size=3600000)"


@pytest.mark.parametrize("size", [0, -1, "1 hour", "h", 1.5, True])
def test_other_sizes_are_refused(size: Any) -> None:
    with pytest.raises(ConfigError, match="window size"):
        windowed(string(), size)


def test_a_windowed_serde_is_data() -> None:
    assert repr(windowed(string())) == "windowed(string())"
    assert len({windowed(string()), windowed(string()), windowed(string(), 5)}) == 2
