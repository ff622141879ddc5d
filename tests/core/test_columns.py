"""What is done with columns: a form is asked and stays one, a list stays a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.columns import Form, joined, keeps_all, take, where
from kafkalite.core.types import Columns, concat

NUMBERS = st.lists(st.integers(), max_size=20)


class Doubled(Form):
    """Halves of what it gives."""

    def __init__(self, halves: list[int]) -> None:
        self.halves = halves

    def __len__(self) -> int:
        return len(self.halves)

    def __getitem__(self, place: Any) -> Any:
        return Doubled(self.halves[place]) if isinstance(place, slice) else 2 * self.halves[place]

    def where(self, mask: Sequence[object]) -> Doubled:
        return Doubled([half for half, keep in zip(self.halves, mask, strict=True) if keep])

    def take(self, indexes: Sequence[int]) -> Doubled:
        return Doubled([self.halves[index] for index in indexes])

    def followed_by(self, others: Sequence[Doubled]) -> Sequence[Any]:
        return Doubled([*self.halves, *(half for other in others for half in other.halves)])


@given(NUMBERS, st.data())
def test_a_form_gives_what_a_list_gives_and_stays_a_form(
    halves: list[int], data: st.DataObject
) -> None:
    form, plain = Doubled(halves), [2 * half for half in halves]
    mask = data.draw(st.binary(min_size=len(halves), max_size=len(halves)))
    indexes = data.draw(st.lists(st.sampled_from(range(len(halves))))) if halves else []
    for made, expected in (
        (where(form, mask), where(plain, mask)),
        (take(form, indexes), take(plain, indexes)),
        (joined([form, form[1:], form]), joined([plain, plain[1:], plain])),
    ):
        assert type(made) is Doubled
        assert list(made) == list(expected)
    assert list(joined([form, plain])) == plain + plain
    assert keeps_all(mask) == keeps_all(list(mask)) == all(mask)


@pytest.mark.parametrize("column", [[1, 2, 3], (1, 2, 3), range(1, 4)])
def test_other_sequences_become_lists(column: Sequence[int]) -> None:
    assert where(column, b"\1\0\1") == [1, 3]
    assert list(take(column, [2, 2, 0])) == [3, 3, 1]
    assert list(take(column, [1])) == [2]
    assert list(take(column, [])) == []
    assert joined([column, [9]]) == [1, 2, 3, 9]


def test_records_in_forms_are_chosen_and_joined_as_any_others() -> None:
    columns = Columns(Doubled([1, 2]), Doubled([3, 4]), [5, 6], range(2))
    kept = columns.where([False, True])
    assert type(kept.values) is Doubled
    assert (list(kept.keys), list(kept.values), list(kept.timestamps)) == ([4], [8], [6])
    both = concat([columns, columns])
    assert type(both.keys) is Doubled
    assert list(both.values) == [6, 8, 6, 8]
