"""Errors at run time: the user's line, the fields there are, and how to go on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from kafkalite.core.types import Columns
from kafkalite.errors import ProcessingError
from kafkalite.serde import bytes_
from kafkalite.serde.serde import Serde
from kafkalite.streams import Streams, json, max_, string
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.task import Task
from kafkalite.streams.stream import Stream


def failure(build: Callable[[Stream], Any], data: bytes, value: Serde | None = None) -> str:
    app = Streams("app", key=string(), value=json() if value is None else value)
    build(app.stream("in"))
    (sub,) = compile_topology(app.plan())
    task = Task(sub, 1)
    task.enqueue("in", Columns([b"k"], [data], [0], range(7, 8)))
    with pytest.raises(ProcessingError) as caught:
        task.process(1, 0)
        task.commit()
    return str(caught.value)


def line_of(function: Callable[..., Any], further: int = 0) -> str:
    return f"{__file__}:{inspect.getsourcelines(function)[1] + further}"


def half(value: Any) -> Any:
    amount = value["amount"]
    return amount / 0


def test_the_line_of_the_users_function_and_how_to_go_on() -> None:
    told = failure(lambda s: s.map(half, name="half").to("out"), b'{"amount": 3}')
    assert told == (
        "'half': topic 'in', partition 1, offset 7: ZeroDivisionError: division by zero "
        f'({line_of(half, 2)}). To go on without such records: on_error="skip" or "dlq"'
    )


def test_where_no_line_of_the_users_failed_it_is_the_one_that_made_the_operator() -> None:
    def build(stream: Stream) -> None:
        stream.map("amount").to("out")

    told = failure(build, b'{"price": 1, "vat": 2}')
    assert "the value has no field 'amount'; it has 'price', 'vat' (" in told
    assert f"({line_of(build, 1)})" in told


def test_fields_are_listed_for_lambdas_aggregates_and_made_values() -> None:
    data = b'{"price": 1}'
    lines: list[Callable[[Stream], Any]] = [
        lambda s: s.filter(lambda v: v["amount"]).to("out"),
        lambda s: s.group_by_key().aggregate(max_("amount")),
        lambda s: s.map(dict).map(lambda v: v["amount"]).to("out"),
    ]
    for build in lines:
        assert "'amount'; it has 'price'" in failure(build, data)


def test_of_many_fields_twenty_are_listed() -> None:
    data = "{" + ", ".join(f'"f{n:02}": 1' for n in range(30)) + "}"
    told = failure(lambda s: s.map("amount").to("out"), data.encode())
    assert "'f19', …" in told
    assert "f20" not in told


@pytest.mark.parametrize("function", ["amount", lambda v: v["amount"], lambda v: v.get("amount")])
def test_a_value_that_no_serde_reads_is_said_to_be_bytes(function: Any) -> None:
    told = failure(lambda s: s.map(function).to("out"), b'{"amount": 1}', bytes_())
    assert "; the value is bytes, because no serde reads it: value=json()" in told


def test_what_a_line_in_a_library_leads_back_to() -> None:
    import json as library

    def parsed(value: Any) -> Any:
        return library.loads(value)

    told = failure(lambda s: s.map(parsed).to("out"), b'"{"')
    assert line_of(parsed, 1) in told
