"""What `--json` prints is what the page of commands says: one document, these fields, no others."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kafkalite.cli.json_shapes import SHAPES

Run = Callable[..., Any]
FIELD = re.compile(r"[a-z][a-z0-9_.]*")
BY_NAME = frozenset({"configs"})  # objects whose names are data


def fields(value: Any) -> Iterator[str]:
    """The names of all fields within."""
    if isinstance(value, list):
        for entry in value:
            yield from fields(entry)
    elif isinstance(value, dict):
        for name, below in value.items():
            yield name
            yield from fields(list(below.values()) if name in BY_NAME else below)


def hold(command: str, told: Any) -> None:
    """Nothing is told that the page does not name; at the top nothing is missing."""
    shape = SHAPES[f"kafkalite {command}"]
    assert set(fields(told)) <= set(FIELD.findall(shape)), command
    if isinstance(told, list):
        assert shape.startswith("[{")
        assert told, command
        (told, *_), shape = told, shape[1:]
    of_the_first = shape.partition("}")[0]
    names = FIELD.findall(re.sub(r": \[.*|: \{.*", "", of_the_first))
    assert list(told)[: len(names)] == names, command


def test_documents_have_the_fields_that_are_told(
    kafkalite: Run, topic: str, tmp_path: Path
) -> None:
    def ask(*words: str, flags: tuple[str, ...] = (), stdin: bytes = b"") -> Any:
        ran = kafkalite(*words, *flags, "--json", stdin=stdin)
        told = json.loads(ran.out)
        hold(" ".join(words[:1] if words[0] in ("produce", "consume") else words[:2]), told)
        return told

    ask("topics", "create", topic)
    ask("produce", topic, flags=("--key-separator", ":"), stdin=b"k:v\nk:w\n")
    ask("consume", topic, flags=("--max-records", "1"))
    ask("topics", "alter", topic, flags=("--set", "retention.ms=100000000"))
    (described,) = ask("topics", "describe", topic)
    assert described["configs"]["retention.ms"] == {"value": "100000000", "source": "TOPIC"}
    ask("topics", "list")
    ask("server", "status")
    ask("cluster", "status")
    ask("cluster", "rebalance", flags=("--dry-run",))
    ask("configs", "describe", "topic", topic, flags=("--synonyms", "--documentation"))
    ask("configs", "alter", "topic", topic, flags=("--unset", "retention.ms"))
    ask("transactions", "producers", topic)
    group = f"group-of-{topic}"
    kafkalite("consume", topic, "--group", group, "--until-end")
    ask("groups", "list")
    ask("groups", "describe", group)
    ask("groups", "reset-offsets", group, flags=("--all-topics", "--to", "earliest"))
    ask("groups", "delete-offsets", group, flags=("--topic", topic, "--yes"))
    ask("topics", "trim", topic, flags=("--before", "1", "--yes"))
    ask("topics", "delete", topic, flags=("--yes",))
