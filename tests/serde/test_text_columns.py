"""Columns of text as bytes: what Arrow holds is written as Python would write it."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.protocol.record_codec import NATIVE, Spans
from kafkalite.errors import SerdeError
from kafkalite.serde import primitives
from kafkalite.serde.arrow_form import ArrowForm
from kafkalite.serde.serde import SerdeContext

CODEC = primitives.StringSerde().open(SerdeContext(None, is_key=True))


class Held:
    """An Arrow array as the source of a form."""

    def __init__(self, array: pa.Array) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    @property
    def null_count(self) -> int:
        return int(self.array.null_count)

    def arrow(self) -> pa.Array:
        return self.array

    def objects(self, indexes: Any) -> list[Any]:
        found = self.array.to_pylist()
        return [found[index] for index in indexes]


TEXTS = st.lists(st.none() | st.text(max_size=4), max_size=30)


@given(TEXTS, st.data())
def test_text_in_arrow_gives_the_bytes_that_objects_give(
    texts: list[str | None], data: st.DataObject
) -> None:
    form, plain = ArrowForm(Held(pa.array(texts, pa.string()))), texts
    for _ in range(data.draw(st.integers(0, 2))):
        if data.draw(st.booleans()):
            mask = bytes(data.draw(st.lists(st.integers(0, 1), min_size=len(plain))))[: len(plain)]
            form, plain = form.where(mask), [t for t, m in zip(plain, mask, strict=True) if m]
        else:
            start = data.draw(st.integers(0, len(plain)))
            form, plain = form[start:], plain[start:]
    with patch.object(primitives, "FEW", 0):
        written = CODEC.serialize("t", form)
    assert list(written) == [None if text is None else text.encode() for text in plain]


@pytest.mark.parametrize("count", [primitives.FEW - 1, primitives.FEW])
def test_large_batches_make_no_object_for_each(count: int) -> None:
    written = CODEC.serialize("t", ArrowForm(Held(pa.array(["ä"] * count))))
    assert (type(written) is Spans) == (NATIVE and count == primitives.FEW)


def test_what_is_no_text_fails_with_its_place() -> None:
    many = primitives.FEW
    with pytest.raises(SerdeError, match="str expected, got int"):
        CODEC.serialize("t", ArrowForm(Held(pa.array([1] * many))))
    broken = pa.Array.from_buffers(
        pa.string(),
        many,
        [None, pa.py_buffer(bytes(4 * many) + b"\1\0\0\0"), pa.py_buffer(b"\xff")],
    )
    with pytest.raises(UnicodeDecodeError):
        CODEC.serialize("t", ArrowForm(Held(broken)))
