"""Memory that is written to before it is read."""

from __future__ import annotations

import tracemalloc

import pytest

from kafkalite.core.protocol import connection, memory
from kafkalite.core.protocol.connection import ANSWER_FIRST_BYTES_MAX, ClientConnection
from kafkalite.core.protocol.record_codec import NATIVE


@pytest.mark.parametrize("size", [0, 1, 5_000_000])
def test_memory_has_the_size_that_was_asked_for_and_can_be_written(size: int) -> None:
    made = memory.unwritten(size)
    assert type(made) is bytearray
    assert len(made) == size
    made[:] = b"x" * size
    assert made == b"x" * size


def test_no_memory_has_a_negative_size() -> None:
    with pytest.raises(ValueError, match="negative count"):
        memory.unwritten(-1)


def test_the_fastest_twin_is_chosen() -> None:
    native = "builtin_function_or_method"
    assert (type(memory.unwritten).__name__ == native) is NATIVE


def test_an_answer_is_received_into_memory_that_nobody_has_filled_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def noted(size: int) -> bytearray:
        asked.append(size)
        return bytearray(b"\xaa") * size

    monkeypatch.setattr(connection, "unwritten", noted)
    body = bytes(range(256)) * 40_000  # more than an answer's first bytes
    assert len(body) > 2 * ANSWER_FIRST_BYTES_MAX
    receiver = ClientConnection("c")
    tracemalloc.start()
    try:
        receiver.receive_data(len(body).to_bytes(4, "big"))
        assert receiver.next_frame() is None
        receiver.receive_data(body)
        frame = receiver.next_frame()
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert asked == [len(body)]
    assert frame == body
    assert most < 2.2 * len(body)  # the frame, and the test's own pattern
