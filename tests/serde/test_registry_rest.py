"""Confluent's REST API: scenarios, played on the functions alone and over HTTP."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.embedded import EmbeddedBroker
from kafkalite.errors import SchemaError
from kafkalite.serde.registry import MemoryRegistry, Registry
from kafkalite.serde.registry_calls import Call, PlainText, problem
from kafkalite.serde.registry_rest import ROUTES, Around, find_route

SCENARIOS = sorted((Path(__file__).parent / "registry_scenarios").glob("*.txt"))
LINE = re.compile(r"(GET|POST|PUT|DELETE)\s+(\S+)\s*(.*?)\s*=> (\d+) ?(text )?(.*)")

Door = Callable[[str, str, Any], tuple[int, Any]]


@dataclass(frozen=True)
class Step:
    """A call, and what is expected of its answer."""

    line: str
    method: str
    path: str
    body: Any
    status: int
    is_text: bool
    expected: str


def steps(scenario: Path) -> Iterator[Step]:
    names: dict[str, str] = {}
    for line in scenario.read_text().splitlines():
        if line.startswith("let "):
            name, text = (part.strip() for part in line.removeprefix("let ").split("=", 1))
            names[f"${name}"] = text
        elif line and not line.startswith("#"):
            found = LINE.fullmatch(line.strip())
            assert found, line
            method, path, body, status, text, expected = found.groups()
            for name, value in names.items():
                quoted = json.dumps(value)
                body = re.sub(re.escape(name) + r"\b", lambda _, q=quoted: q, body)
                instead = value if text else quoted
                expected = re.sub(re.escape(name) + r"\b", lambda _, v=instead: v, expected)
            yield Step(line, method, path, json.loads(body) if body else None, int(status),
                       bool(text), expected)  # fmt: skip


def covers(answer: Any, expected: Any) -> bool:
    """Whether an answer has all that is expected of it; objects may have more."""
    if isinstance(expected, dict):
        return isinstance(answer, dict) and all(
            name in answer and covers(answer[name], value) for name, value in expected.items()
        )
    if isinstance(expected, list):
        return len(answer) == len(expected) and all(map(covers, answer, expected))
    return bool(answer == expected)


def play(scenario: Path, door: Door) -> None:
    for step in steps(scenario):
        status, answer = door(step.method, step.path, step.body)
        assert status == step.status, (step.line, answer)
        if step.status == 200:
            expected = step.expected if step.is_text else json.loads(step.expected)
            assert covers(answer, expected), (step.line, answer)
            continue
        code, _, message = step.expected.partition(" ")
        assert answer["error_code"] == int(code), (step.line, answer)
        assert message.strip()[1:-1] in answer["message"], (step.line, answer)


def memory_door() -> Door:
    """The functions on a fold, with the records that they want replayed at once."""
    memory = MemoryRegistry()

    def door(method: str, target: str, body: Any) -> tuple[int, Any]:
        path, _, query = target.partition("?")
        segments = tuple(unquote(part) for part in path.split("/")[1:])
        found = find_route(method, segments)
        assert isinstance(found, tuple), target
        route, parameters = found
        call = Call(parameters, parse_qs(query), body)
        try:
            answer, records = route.answer(memory.registry, call)
            assert all(memory.registry.replay(*record) for record in records), target
            if (method, route.path) == ("POST", "/subjects/{subject}/versions"):
                again, none = route.answer(memory.registry, call)
                assert (again, none) == (answer, ()), target
        except SchemaError as error:
            return problem(error)
        if route.around in (Around.READ, Around.KNOWN):
            assert records == ()
        return 200, answer if isinstance(answer, PlainText) else json.loads(json.dumps(answer))

    return door


def http_door(url: str) -> Door:
    host, _, port = url.removeprefix("http://").rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)

    def door(method: str, path: str, body: Any) -> tuple[int, Any]:
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        data = response.read()
        if response.headers.get_content_type() == "text/plain":
            return response.status, data.decode()
        assert response.headers.get_content_type() == "application/vnd.schemaregistry.v1+json"
        return response.status, json.loads(data)

    return door


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_a_scenario_on_the_functions(scenario: Path) -> None:
    play(scenario, memory_door())


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_a_scenario_over_http(scenario: Path, tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, registry=True) as broker:
        assert broker.registry_url is not None
        play(scenario, http_door(broker.registry_url))


def test_every_route_is_played() -> None:
    played = set()
    for scenario in SCENARIOS:
        for step in steps(scenario):
            path = step.path.partition("?")[0]
            found = find_route(step.method, tuple(path.split("/")[1:]))
            assert isinstance(found, tuple), step.line
            played.add(found[0])
    rare = {("POST", "/"), ("GET", "/schemas/guids/{guid}/ids")}
    assert {(r.method, r.path) for r in ROUTES if r not in played} == rare


def test_what_is_rarely_asked() -> None:
    door = memory_door()
    assert door("POST", "/", {}) == (200, {})
    assert door("DELETE", "/mode", None) == (200, {"mode": "READWRITE"})
    _, told = door("POST", "/subjects/s/versions", {"schema": '"int"'})
    assert door("GET", f"/schemas/guids/{told['guid']}/ids", None) == (
        200,
        [{"context": ".", "id": 1}],
    )
    assert door("GET", f"/schemas/guids/{told['guid']}", None)[1]["schema"] == '"int"'
    assert door("GET", "/schemas/guids/nix/ids", None) == (200, [])


def test_a_guid_is_confluents_hash_of_the_text_and_the_references() -> None:
    """The first is `echo -n '"int"' | md5sum`, as a UUID."""
    registry = Registry()
    assert registry.normal('"int"').guid == "ef524ea1-b91e-7317-3d93-8ade36c1db32"


def test_paths_that_are_none_and_methods_that_a_path_has_not() -> None:
    assert find_route("GET", ("nix",)) == set()
    assert find_route("PATCH", ("subjects",)) == {"GET"}
    assert find_route("GET", ("subjects", "s")) == {"POST", "DELETE"}


def test_a_schema_that_no_record_can_hold() -> None:
    door = memory_door()
    text = json.dumps({"type": "enum", "name": "E", "symbols": ["S"], "doc": "x" * 1_000_000})
    status, answer = door("POST", "/subjects/s/versions", {"schema": text})
    assert (status, answer["error_code"]) == (422, 42209)


WORDS = st.sampled_from(
    ["s", "t", ":.c:s", ":.c:", "", "1", "latest", "-1", "0", "nix", "true", "AVRO", "JSON", "NONE",
     "FULL", "IMPORT", "READONLY", '"int"', '{"type":"object"}', '{"type":"array","items":"R"}',
     "resolved"]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | WORDS,
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(
        st.sampled_from(["schema", "schemaType", "references", "name", "subject", "version", "id",
                         "metadata", "properties", "tags", "ruleSet", "compatibility", "mode",
                         "normalize", "alias"]),
        inner,
        max_size=5,
    ),
    max_leaves=8,
)  # fmt: skip
QUERIES = st.dictionaries(
    st.sampled_from(["deleted", "permanent", "subject", "subjectPrefix", "offset", "limit",
                     "verbose", "format", "force", "defaultToGlobal", "key", "value",
                     "fetchMaxId"]),
    st.lists(WORDS, max_size=2),
    max_size=3,
)  # fmt: skip


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.sampled_from(ROUTES), st.lists(WORDS, min_size=3), QUERIES, VALUES)),
)
@settings(max_examples=300, deadline=None)
def test_any_calls_are_answered_or_refused_with_a_code(calls: list[Any]) -> None:
    memory = MemoryRegistry()
    memory.register("s", "int")
    for route, words, query, body in calls:
        names = [part[1:-1] for part in route.segments if part.startswith("{")]
        call = Call(dict(zip(names, words, strict=False)), query, body)
        try:
            answer, records = route.answer(memory.registry, call)
        except SchemaError as error:
            status, told = problem(error)
            assert 400 <= status < 500, (route, told)
            continue
        json.dumps(answer)
        for key, value in records:
            assert memory.registry.replay(key, value), (route, key)
    assert memory.registry.repairs() == ()
