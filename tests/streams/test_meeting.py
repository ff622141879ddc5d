"""A node with several parents below a fork: records come into its inputs in their order."""

from __future__ import annotations

from kafkalite.core.types import Columns
from kafkalite.streams.local.batch import Batch, Fetched
from kafkalite.streams.local.order import Arm, Meeting, Pushed


def batch(values: list[str], origin: object) -> Batch:
    return Batch(list(range(len(values))), origin, values=values)  # type: ignore[arg-type]


def test_records_of_both_arms_come_one_after_the_other() -> None:
    came: list[tuple[str, list[object]]] = []
    meeting = Meeting(
        (
            lambda each: came.append(("left", list(each.values or ()))),
            lambda each: came.append(("right", list(each.values or ()))),
        )
    )
    fetched = Fetched("in", 0, Columns([None] * 3, [b""] * 3, [0, 1, 2]))
    left, right = meeting.collect(0), meeting.collect(1)
    right(batch(["a'", "b'", "c'"], Arm(fetched, 64, 1)))
    left(batch(["a", "b", "c"], Arm(fetched, 64, 0)))
    assert came == []
    meeting.settle()
    assert came == [
        ("left", ["a"]), ("right", ["a'"]), ("left", ["b"]),
        ("right", ["b'"]), ("left", ["c"]), ("right", ["c'"]),
    ]  # fmt: skip


def test_neighbours_of_one_arm_stay_together_and_a_settled_run_is_over() -> None:
    came: list[list[object]] = []
    meeting = Meeting((lambda each: came.append(list(each.values or ())),) * 2)
    fetched = Fetched("in", 0, Columns([None] * 2, [b""] * 2, [0, 1]))
    meeting.collect(1)(batch(["c"], Pushed(fetched, 2)))
    meeting.collect(0)(batch(["a", "b"], Pushed(fetched, 1)))
    meeting.collect(0)(batch([], fetched))
    meeting.settle()
    meeting.settle()
    assert came == [["a", "b"], ["c"]]
