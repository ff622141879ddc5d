"""`kafkalite-spark` tells a user in one line what is wrong, before a JVM starts.

Loads themselves have their tests in tests/spark and tests/examples.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

Run = Callable[..., Any]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--key", "other=string"], "--key other=string: give TOPIC=FORMAT for a topic to load"),
        (["--value", "x="], "--value x=: give TOPIC=FORMAT for a topic to load"),
        (
            ["--warehouse", "s3://bucket/lake"],
            "--warehouse: s3:// is not supported: give a folder that is mounted here",
        ),
        (["--until", "noon"], "--until noon: neither ISO 8601 nor epoch ms"),
        (["--query", "/no/such.sql"], "/no/such.sql: No such file or directory"),
    ],
)
def test_what_makes_no_sense_is_named(
    refused: Run, kafkalite_spark: Run, arguments: list[str], complaint: str
) -> None:
    assert refused("load", "x", *arguments, program=kafkalite_spark) == complaint


def test_a_topic_that_is_not_there_is_named(
    refused: Run, kafkalite_spark: Run, topic: str, tmp_path: Path
) -> None:
    warehouse = tmp_path / "warehouse"
    load = ("load", topic, "--warehouse", str(warehouse))
    assert topic in refused(*load, program=kafkalite_spark)
    assert not warehouse.exists()


def test_a_load_without_spark(
    kafkalite_spark: Run, bootstrap: str, topic: str, kafkalite: Run, tmp_path: Path
) -> None:
    kafkalite("produce", topic, "--create", stdin=b"one\ntwo\n")
    load = ("load", topic, "--engine", "local", "--warehouse", str(tmp_path), "--json")
    value = ("--value", f"{topic}=string")
    done = json.loads(kafkalite_spark(*load, *value).out)
    assert done["records"] == 2
    table = Path(done["tables"][0]["table"])
    assert sorted(ds.dataset(table).to_table()["value"].to_pylist()) == ["one", "two"]
    assert json.loads(kafkalite_spark(*load, *value).out)["records"] == 0


def test_small_files_are_merged_by_a_command_or_after_a_load(
    kafkalite_spark: Run, bootstrap: str, topic: str, kafkalite: Run, tmp_path: Path
) -> None:
    load = ("load", topic, "--engine", "local", "--warehouse", str(tmp_path), "--json")
    value = ("--value", f"{topic}=string", "--min-partitions", "4")
    kafkalite("produce", topic, "--create", stdin=b"a\nb\nc\nd\n")
    (table,) = json.loads(kafkalite_spark(*load, *value).out)["tables"]
    assert table["files"] == 4
    compact = ("compact", topic, "--warehouse", str(tmp_path))
    done = json.loads(kafkalite_spark(*compact, "--json").out)["tables"]
    assert [(each["merged_files"], each["made_files"]) for each in done] == [(4, 1)]
    assert kafkalite_spark(*compact).out.endswith(b": no small files to merge\n")
    kafkalite("produce", topic, stdin=b"e\nf\n")
    (table,) = json.loads(kafkalite_spark(*load, *value, "--merge-above", "1").out)["tables"]
    assert (table["merged_files"], table["made_files"]) == (3, 1)
    found = ds.dataset(table["table"]).to_table()["value"].to_pylist()
    assert sorted(found) == ["a", "b", "c", "d", "e", "f"]


def test_a_table_that_is_not_there_is_named(
    refused: Run, kafkalite_spark: Run, tmp_path: Path
) -> None:
    compact = ("compact", "orders", "--warehouse", str(tmp_path))
    assert refused(*compact, program=kafkalite_spark) == f"{tmp_path}: there is no table orders"
