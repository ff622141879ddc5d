"""Topologies over several partitions in the rehearsal of Spark: however micro-batches are cut."""

from __future__ import annotations

import json as plain_json
from collections import Counter
from random import Random
from typing import Any

import pytest

from kafkalite.core.types import Columns
from kafkalite.streams import json, string, tumbling
from kafkalite.streams.api import StreamsBuilder
from kafkalite.streams.local.drops import Reason
from kafkalite.testing.spark import Rehearsal

Record = tuple[int, str, int]  # partition, user, timestamp
WINDOW_MS = 10_000
USERS = "abcdefg"


def records(seed: int, count: int = 600) -> list[Record]:
    """Three partitions, each in the order of time, of which one is far behind the others."""
    random, times, made = Random(seed), [0, 50_000, 400_000], []
    for _ in range(count):
        partition = random.randrange(3)
        times[partition] += random.randrange(400)
        made.append((partition, random.choice(USERS), times[partition]))
    return made


def write(spark: Rehearsal, made: list[Record]) -> None:
    for partition in range(3):
        mine = [(user, time) for place, user, time in made if place == partition]
        values = [plain_json.dumps({"user": user}).encode() for user, _ in mine]
        spark.write("in", partition, Columns([None] * len(mine), values, [t for _, t in mine]))


def counting() -> StreamsBuilder[str, Any]:
    app: StreamsBuilder[str, Any] = StreamsBuilder("app", key=string(), value=json())
    windows = app.stream("in").group_by(lambda value: str(value["user"])).window(tumbling("10s"))
    windows.count().final().to("out")
    return app


def counted(spark: Rehearsal) -> list[tuple[str, int, int]]:
    """User, window and count of each result."""
    return [
        (key[:-8].decode(), int.from_bytes(key[-8:], "big"), int.from_bytes(value, "big"))
        for key, value, _ in spark.read("out")
        if key is not None and value is not None
    ]


@pytest.mark.parametrize("size", [1, 7, 50, None])
def test_final_results_take_no_partition_for_late(size: int | None) -> None:
    made = records(seed=1)
    with Rehearsal(counting(), {"in": 3, "out": 2}, seed=2) as spark:
        write(spark, made)
        spark.run(*[size] if size else [])
        found = counted(spark)
        newest = max(time for _, _, time in made)
    wanted = Counter((user, time // WINDOW_MS * WINDOW_MS) for _, user, time in made)
    assert all(wanted[user, start] == n for user, start, n in found)
    assert len(found) == len({(user, start) for user, start, _ in found})
    # A window closes by a later record of its own partition of the repartition topic.
    surely = {each for each in wanted if each[1] + 2 * WINDOW_MS <= newest}
    assert surely <= {(user, start) for user, start, _ in found}
    assert not spark.drops.counts


def test_repeated_micro_batches_and_dead_workers_change_nothing() -> None:
    made, random = records(seed=3), Random(4)
    results = []
    for is_harmed in (False, True):
        with Rehearsal(counting(), {"in": 3, "out": 2}, seed=5) as spark:
            write(spark, made)
            while spark.lag:
                if is_harmed and random.random() < 0.5:
                    spark.forget_tasks()
                spark.micro_batch(20, repeats=random.randrange(3) if is_harmed else 0)
            spark.micro_batch(idle=True)
            results.append(sorted(counted(spark)))
    assert results[0] == results[1]
    assert results[0]


def test_a_run_counts_records_left_out_once_however_often_a_micro_batch_is_repeated() -> None:
    app: StreamsBuilder[str, Any] = StreamsBuilder("app", key=string(), value=json())
    named = app.stream("in").filter(
        lambda value: bool(value["user"] != "b" or {}["b"]), on_error="skip"
    )
    named.group_by(
        lambda value: value["user"] if value["user"] != "a" else None
    ).count().to_stream().to("out")
    made, random = records(seed=10), Random(11)
    with Rehearsal(app, {"in": 3, "out": 2}, seed=5) as spark:
        write(spark, made)
        while spark.lag:
            if random.random() < 0.5:
                spark.forget_tasks()
            spark.micro_batch(20, repeats=random.randrange(3))
        wanted = Counter(user for _, user, _ in made)
        found = {drop.reason: records for drop, records in spark.left_out.counts.items()}
        assert found == {Reason.SKIP: wanted["b"], Reason.NULL_KEY: wanted["a"]}
        assert sum(spark.drops.counts.values()) > sum(found.values()), "none was repeated"


def test_the_second_level_counts_the_rows_of_the_first() -> None:
    app: StreamsBuilder[str, Any] = StreamsBuilder("app", key=string(), value=json())
    users = app.stream("in").group_by(lambda value: str(value["user"])).count()
    halves = users.group_by(lambda user, _: "even" if user in "aceg" else "odd", with_key=True)
    halves.count().to_stream().to("out")
    made = records(seed=6)
    with Rehearsal(app, {"in": 3, "out": 1}, seed=7) as spark:
        write(spark, made)
        spark.run(40)
        last = {key: int.from_bytes(value or b"", "big") for key, value, _ in spark.read("out")}
    assert last == {b"even": 4, b"odd": 3}


def test_async_functions_end_with_their_micro_batch() -> None:
    async def doubled(value: Any) -> Any:
        return {"user": value["user"] * 2}

    app: StreamsBuilder[str, Any] = StreamsBuilder("app", key=string(), value=json())
    app.stream("in").map_async(doubled, concurrency=4).to("out")
    made = records(seed=8, count=50)
    with Rehearsal(app, {"in": 3, "out": 1}, seed=9) as spark:
        write(spark, made)
        spark.micro_batch(10)
        found = [plain_json.loads(value or b"")["user"] for _, value, _ in spark.read("out")]
    assert len(found) == 30
    assert all(user[0] == user[1] for user in found)


@pytest.mark.parametrize("is_harmed", [False, True])
def test_a_task_with_state_has_the_rows_of_global_tables(is_harmed: bool) -> None:
    app: StreamsBuilder[str, Any] = StreamsBuilder("app", key=string(), value=json())
    teams = app.global_table("teams")
    counts = app.stream("in").group_by(lambda value: str(value["user"])).count().to_stream()
    counts.join(teams, lambda count, team: [team, count]).to("out")
    random = Random(12)
    with Rehearsal(app, {"in": 3, "out": 1, "teams": 2}, seed=13) as spark:
        for day in range(3):
            for partition, users in enumerate((USERS[:4], USERS[4:])):
                keys, n = [user.encode() for user in users], len(users)
                spark.write("teams", partition, Columns(keys, [b"%d" % day] * n, [day] * n))
            write(spark, records(seed=day, count=50))
            while spark.lag:
                if is_harmed and random.random() < 0.5:
                    spark.forget_tasks()
                spark.micro_batch(20, repeats=int(is_harmed))
        found = [(key, plain_json.loads(value or b"")) for key, value, _ in spark.read("out")]
    last = dict(found)
    assert {team for _, (team, _) in found} == {0, 1, 2}
    assert {team for team, _ in last.values()} == {2}
    assert sum(count for _, count in last.values()) == 150


def test_windows_without_new_records_end_by_the_wall_clock() -> None:
    app: StreamsBuilder[str, Any] = StreamsBuilder("app", key=string(), value=json())
    windows = app.stream("in").group_by(lambda value: str(value["user"])).window(tumbling("10s"))
    windows.count().final(idle="1m").to("out")
    with Rehearsal(app, {"in": 3, "out": 1}, seed=10) as spark:
        assert spark.layout.stages.looks_at_the_clock
        write(spark, records(seed=11, count=60))
        spark.run()
        before = sum(count for _, _, count in counted(spark))
        spark.now_ms += 61_000
        spark.micro_batch(idle=True)
        assert before < sum(count for _, _, count in counted(spark)) == 60
