"""Results by text: what is kept, and what is not."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from kafkalite.serde.text_cache import CHARS_MAX, RESULTS_MAX, cached_by_text


def counting() -> tuple[list[str], Callable[..., str]]:
    asked: list[str] = []

    @cached_by_text
    def shout(text: str, *others: str) -> str:
        asked.append(text)
        if text == "wrong":
            raise ValueError(text)
        return "".join((text, *others)).upper()

    return asked, shout


def test_a_result_is_made_once() -> None:
    asked, shout = counting()
    assert [shout("a"), shout("a"), shout("a", "b"), shout("a", "b")] == ["A", "A", "AB", "AB"]
    assert asked == ["a", "a"]


def test_a_failure_is_not_kept() -> None:
    asked, shout = counting()
    for _ in range(2):
        with pytest.raises(ValueError, match="wrong"):
            shout("wrong")
    assert asked == ["wrong", "wrong"]


def test_of_many_results_those_asked_for_last_are_kept() -> None:
    asked, shout = counting()
    for number in range(RESULTS_MAX):
        shout(str(number))
    shout("0")
    shout("one more")  # takes the place of "1"
    asked.clear()
    for text in ("0", "one more", "2", "1"):
        shout(text)
    assert asked == ["1"]


def test_of_long_texts_few_are_kept_and_a_longer_one_is_not() -> None:
    asked, shout = counting()
    half, whole = "h" * (CHARS_MAX // 2), "w" * (CHARS_MAX + 1)
    for text in ("a", half, half[1:] + "!", "b", whole):
        shout(text)
    asked.clear()
    for text in ("b", half[1:] + "!", "a", half, whole):
        shout(text)
    assert [text[:1] for text in asked] == ["a", "h", "w"]


def test_threads_that_ask_at_once_get_their_results() -> None:
    _, shout = counting()
    texts = [str(number % (RESULTS_MAX + 9)) for number in range(5_000)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(shout, texts, chunksize=100)) == texts


def test_others_may_ask_while_the_oldest_is_looked_for() -> None:
    """The garbage collector may call code of others, or give another thread its turn."""
    _, shout = counting()
    for number in range(RESULTS_MAX // 2):  # there is room for more
        shout(str(number))
    answers: list[str] = []
    pairs: list[tuple[int, int]] = []

    def ask(phase: str = "stop", _: object = None) -> None:
        if phase == "stop":
            answers.append(shout(f"meanwhile {len(answers)}"))
            # Pairs that are free and used again would not call the collector.
            pairs.extend((number, number) for number in range(3_000))

    ask()
    thresholds = gc.get_threshold()
    gc.callbacks.append(ask)
    try:
        gc.set_threshold(1)
        assert shout("new") == "NEW"
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(ask)
    assert len(answers) > 1, "the collector ran"
    assert answers == [f"MEANWHILE {number}" for number in range(len(answers))]
