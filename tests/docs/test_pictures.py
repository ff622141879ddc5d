"""The guide's pictures: the files are those that the engine draws, and show what a window is."""

from __future__ import annotations

import re
from pathlib import Path

from pictures import PICTURES
from pictures.canvas import rows_of

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
TEN, FIVE = 10.0, 5.0
RECORD = re.compile(r'data-record="(\w)" data-at="([\d.]+)"')
BAR = re.compile(r'data-start="([\d.]+)" data-end="([\d.]+)" data-label="[^"]*[\])] ([a-z ]+)"')
JUST_AFTER = 0.001  # a millisecond, in seconds

Windows = set[tuple[float, float, str]]


def windows_of(name: str) -> tuple[dict[str, float], Windows]:
    """The records of a picture, and its windows with the letters of their records."""
    text = (FOLDER / f"{name}.svg").read_text()
    records = {letter: float(at) for letter, at in RECORD.findall(text)}
    return records, {(float(start), float(end), held) for start, end, held in BAR.findall(text)}


def held_by(records: dict[str, float], starts: set[float], *, is_closed: bool) -> Windows:
    """Ten seconds from each start, with the records that are in there, if there are any."""
    windows = set()
    for start in (round(start, 3) for start in starts if start >= 0):
        end = round(start + TEN, 3)
        held = [
            letter
            for letter, at in records.items()
            if start <= at < end or (is_closed and at == end)
        ]
        windows |= {(start, end, " ".join(held))} if held else set()
    return windows


def test_the_files_are_those_that_the_code_draws() -> None:
    assert {path.stem for path in FOLDER.glob("*.svg")} == set(PICTURES)
    for name, draw in PICTURES.items():
        assert (FOLDER / f"{name}.svg").read_text() == draw(), f"{name}: run `make docs`"


def test_tumbling_windows_begin_at_multiples_of_their_size() -> None:
    records, windows = windows_of("tumbling")
    assert windows == held_by(records, {TEN * n for n in range(5)}, is_closed=False)


def test_hopping_windows_begin_at_multiples_of_their_advance() -> None:
    records, windows = windows_of("hopping")
    assert windows == held_by(records, {FIVE * n for n in range(10)}, is_closed=False)


def test_a_sliding_window_ends_with_each_record_or_begins_behind_one() -> None:
    records, windows = windows_of("sliding")
    starts = {max(at - TEN, 0) for at in records.values()}
    starts |= {at + JUST_AFTER for at in records.values()}
    assert windows == held_by(records, starts, is_closed=True)


def test_all_five_records_of_the_picture_become_one_session() -> None:
    text = (FOLDER / "session.svg").read_text()
    records = {letter: float(at) for letter, at in RECORD.findall(text)}
    first, *_, last = sorted(records.values())
    assert f'data-start="{first:g}" data-end="{last:g}"' in text
    assert ">a b c d e<" in text


def test_the_window_with_grace_holds_the_records_up_to_the_late_one() -> None:
    text = (FOLDER / "grace.svg").read_text()
    assert re.findall(r'class="rejected".*data-record="(\w)"', text) == ["f"]
    assert "closes [0, 10): a b d" in text


def test_a_join_pairs_the_records_within_its_window_and_as_of_takes_the_latest() -> None:
    joined = (FOLDER / "stream-join.svg").read_text()
    assert "results: (a, q), (a, r), (b, s), (c, None)" in joined
    as_of = (FOLDER / "as-of-join.svg").read_text()
    assert "results: (a, None), (b, q), (c, r), (d, None)" in as_of


def test_bars_that_would_overlap_stand_in_rows_of_their_own() -> None:
    bars = [(0.0, 10.0, ""), (5.0, 15.0, ""), (10.0, 20.0, ""), (11.0, 12.0, "")]
    assert rows_of(bars) == [0, 1, 0, 2]
