"""Loads and compactions under `kill -9`: readers see the rows up to some offset, each once.

`KAFKALITE_LOAD_KILLS` is the number of kills for each kind of table.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from killed import loading
from memory_log import MemoryTopic
from test_compaction import SMALL, compaction, data_files, load
from test_loads import expected, ids

from kafkalite.warehouse.delta_table import DeltaTarget
from kafkalite.warehouse.iceberg_table import IcebergTarget
from kafkalite.warehouse.parquet_table import ParquetTable
from kafkalite.warehouse.target import Target

KILLS = int(os.environ.get("KAFKALITE_LOAD_KILLS", "3"))
ROUNDS = 40  # a table is begun anew after so many kills, so that no round reads many rows
STEPS_MAX = 24  # of a load of two ranges, and of a compaction
Make = Callable[[Path], Target]


def seen_by_a_reader(table: Path) -> list[int]:
    """The rows. A compaction may replace files that were listed: then a reader begins again."""
    for _ in range(20):
        with suppress(FileNotFoundError):
            return ids(table)
    return ids(table)


def of_the_log(table: Path) -> dict[int, int]:
    """How many rows readers see of each partition: the first ones of its log, each once."""
    seen = seen_by_a_reader(table)
    ends = {p: sum(number // 1_000_000 == p for number in seen) for p in (0, 1)}
    assert seen == expected(ends)
    return ends


@pytest.mark.slow
@pytest.mark.timeout(120 + 10 * KILLS)
@pytest.mark.parametrize(
    ("make", "by"),
    [(ParquetTable, None), (ParquetTable, "day"), (DeltaTarget, None), (IcebergTarget, None)],
)
def test_kill_9_leaves_the_first_rows_of_the_log_each_once(
    make: Make, by: str | None, tmp_path: Path
) -> None:
    """Some processes kill themselves between two steps, others are killed within one, while a
    reader looks on.
    """
    random, kills = Random(17), 0
    layout = replace(SMALL, partition_by=by)
    for first in range(0, KILLS, ROUNDS):
        table, topic = tmp_path / str(first) / "orders", MemoryTopic({0: 5, 1: 3})
        table.parent.mkdir()
        load(make, table, topic, layout).run()
        for _ in range(min(ROUNDS, KILLS - first)):
            topic.ends = {p: end + random.randrange(1, 15) for p, end in topic.ends.items()}
            is_between = random.random() < 0.7
            steps = random.randrange(STEPS_MAX) if is_between else STEPS_MAX * 9
            running = loading(make, table, topic, layout, random.choice((0, 10**9)), steps)
            for _ in range(random.randrange(1, 6)):
                seen = seen_by_a_reader(table)
                assert len(seen) == len(set(seen))
                # Folders are listed one by one: a part of them before a commit, the rest after it.
                assert by is not None or of_the_log(table)
            if not is_between:
                os.kill(running.pid or 0, signal.SIGKILL)
            running.join(100)
            kills += running.exitcode == -signal.SIGKILL
            now = of_the_log(table)
            assert sum(now.values()) >= len(seen)
            held = make(table).offsets()
            assert {tp.partition: end for tp, end in held.items()} == now
        load(make, table, topic, layout).run()
        compaction(table, "end", keep_ms=0).run()
        assert of_the_log(table) == topic.ends
        assert len(data_files(table)) <= 3
    assert kills
