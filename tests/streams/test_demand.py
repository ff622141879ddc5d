"""Which fields somebody looks at reaches the serde that reads them; the results are the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from kafkalite.errors import SerdeError
from kafkalite.serde import MemoryRegistry, Serde, SerdeContext, avro, json
from kafkalite.serde.serde import Codec
from kafkalite.streams import TopologyTestDriver, col, count, max_, string, sum_, tumbling
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.local.runtime import Needs
from kafkalite.streams.stream import Stream

VALUES = [{"id": i, "k": "ab"[i % 2], "x": i * 3, "t": i, "deep": {"a": i}} for i in range(6)]


@dataclass(frozen=True)
class Told:
    """JSON that keeps what it was opened with."""

    fields: list[frozenset[str] | None] = field(default_factory=list, compare=False)

    def open(self, context: SerdeContext) -> Codec:
        self.fields.append(context.fields)
        return json().open(context)


def window(stream: Stream) -> Any:
    return stream.group_by("k").window(tumbling(10)).aggregate(n=count(), total=sum_(col("x") * 2))


CASES: dict[str, tuple[Callable[[Stream], Any], set[str] | None]] = {
    "a field's name": (lambda s: s.select_key("k").map("x"), {"k", "x"}),
    "an expression": (lambda s: s.filter(col("x") > 3).select("id"), {"x", "id"}),
    "a field inside a field": (lambda s: s.map(col("deep")["a"]), {"deep"}),
    "branches": (lambda s: s.branch(col("x") > 3, default=True)[1].map("id"), {"x", "id"}),
    "a group": (
        lambda s: s.group_by("k").aggregate(m=max_("x"), n=count()).to_stream(),
        {"x"},  # of the repartition topic, into which the values go whole
    ),
    "windows": (lambda s: window(s).to_stream(), {"x"}),
    "a function": (lambda s: s.filter(col("x") > 3).map(lambda v: v["id"]), None),
    "whole values": (lambda s: s.filter(col("x") > 3).select_key("k"), None),
    "the whole value of an aggregate": (
        lambda s: s.group_by("k").reduce(lambda a, b: b).to_stream(),
        None,
    ),
    "a constant beside nulls": (lambda s: s.select(one=col("x").is_null()), {"x"}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_serde_is_told_which_fields_are_read(case: str) -> None:
    build, fields = CASES[case]
    told = Told()

    def run(serde: Serde) -> list[Any]:
        app = StreamsBuilder("app", key=string(), value=json())
        build(app.stream("in", value=serde)).to("out", value=json())
        driver = TopologyTestDriver(app)
        for at, value in enumerate(VALUES):
            driver.pipe("in", value, key="q", timestamp=at)
        return [(record.key, record.value) for record in driver.read("out")]

    assert run(told) == run(json())
    # The driver opens the serde as well, to write what is piped.
    assert set(told.fields) == {None, None if fields is None else frozenset(fields)}


def test_the_timestamp_is_a_field_that_is_read() -> None:
    told = Told()
    app = StreamsBuilder("app", key=string(), value=json())
    app.stream("in", value=told, timestamp="t").map("x").to("out")
    driver = TopologyTestDriver(app)
    driver.pipe("in", {"t": 5, "x": 1, "y": 2})
    assert driver.read("out")[0].timestamp == 5
    assert frozenset({"t", "x"}) in told.fields


@pytest.mark.parametrize(
    ("one", "other", "fields"),
    [
        (Needs(), Needs(), None),
        (Needs(value=True, fields=frozenset("a")), Needs(), frozenset("a")),
        (Needs(key=True), Needs(value=True, fields=frozenset("a")), frozenset("a")),
        (Needs(value=True, fields=frozenset("a")), Needs(value=True), None),
        (
            Needs(value=True, fields=frozenset("a")),
            Needs(value=True, fields=frozenset("b")),
            frozenset("ab"),
        ),
    ],
)
def test_needs_add_up(one: Needs, other: Needs, fields: frozenset[str] | None) -> None:
    assert (one | other).fields == fields
    assert (other | one).fields == fields


def read(serde: Serde, column: Sequence[bytes | None], registry: Any = None) -> Sequence[Any]:
    context = SerdeContext(registry, fields=frozenset({"a", "b c"}))
    return serde.open(context).deserialize("t", column)


class TestJson:
    def test_other_fields_are_left_out(self) -> None:
        column = [b'{"a":1,"z":[{}],"b c":null}', None, b'{"z":1}', b"{}", b' {"a":{"z":1}} ']
        assert read(json(), column) == [{"a": 1, "b c": None}, None, {}, {}, {"a": {"z": 1}}]

    def test_what_is_no_object_comes_whole(self) -> None:
        assert read(json(), [b"[1]", b"null", b'"a"', b"3"]) == [[1], None, "a", 3]

    @pytest.mark.parametrize("data", [b'{"a":1', b'{"z":tru}', b'{"a":1}x', b"", b'{"a":"\xff"}'])
    def test_what_is_no_json_is_refused(self, data: bytes) -> None:
        with pytest.raises(SerdeError, match=r"json\(\) cannot read") as failure:
            read(json(), [b"{}", data])
        assert failure.value.index == 1

    def test_integers_beyond_64_bits_are_exact(self) -> None:
        number = 123456789012345678901234567890
        assert read(json(), [b'{"a":%d}' % number]) == [{"a": number}]
        assert json().open(SerdeContext()).deserialize("t", [b"%d" % -number]) == [-number]

    def test_floats_beyond_their_range_are_refused(self) -> None:
        with pytest.raises(SerdeError, match="out of range"):
            json().open(SerdeContext()).deserialize("t", [b"1e400"])


def test_avro_leaves_out_other_fields() -> None:
    registry = MemoryRegistry()
    written = avro("R").open(SerdeContext(registry)).serialize("t", [{"a": 1, "z": "x"}])
    (row,) = read(avro(), written, registry)
    assert row["a"] == 1
