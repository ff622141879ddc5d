"""Epochs on a real broker: written once, however often they are tried and wherever they end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from whole_topics import read_topic

from kafkalite.clients.producer.transactional import TransactionalProducer
from kafkalite.errors import KafkaliteError
from kafkalite.spark.sink import epochs
from kafkalite.spark.sink.epochs import Epoch, commit
from kafkalite.spark.sink.options import SinkOptions, parse_sink_options
from kafkalite.spark.sink.rows import records_of
from kafkalite.spark.sink.staging import Staging

KILLS = 8
ROWS = 20_000  # of an epoch that is killed: several batches to each of three partitions


def options_at(address: str) -> SinkOptions:
    given = {"kafka.bootstrap.servers": address, "deliveryGuarantee": "exactly-once"}
    return parse_sink_options(given | {"stagingLocation": "/unused"})


def rows(topic: str, first: int, count: int) -> pa.RecordBatch:
    numbers = [str(n) for n in range(first, first + count)]
    batch = pa.RecordBatch.from_pydict({"key": numbers, "value": numbers})
    (records,) = records_of(batch, topic, {}, 1_700_000_000_000)
    return records


def values_in(address: str, topic: str, partitions: int) -> list[int]:
    return sorted(map(int, asyncio.run(read_topic(address, topic, partitions)).values))


@pytest.fixture
def three(make_topic: Callable[[int], str]) -> str:
    """A topic of three partitions."""
    return make_topic(3)


def test_an_epoch_is_written_once(bootstrap: str, three: str) -> None:
    options, name = options_at(bootstrap), f"name-{three}"
    for number in (0, 0, 1, 0, 1):
        batches = [rows(three, 100 * number, 50), rows(three, 100 * number + 50, 50)]
        commit(options, name, batches, Epoch("query", number))
    assert values_in(bootstrap, three, 3) == list(range(200))


def test_another_query_of_the_same_name_counts_its_own_epochs(bootstrap: str, three: str) -> None:
    options, name = options_at(bootstrap), f"name-{three}"
    for first, epoch in ((0, Epoch("a", 5)), (10, Epoch("b", 0)), (20, Epoch("b", 0))):
        commit(options, name, [rows(three, first, 10)], epoch)
    assert values_in(bootstrap, three, 3) == list(range(20))


def test_a_table_without_an_epoch_is_whole_or_not_there(bootstrap: str, three: str) -> None:
    options, name = options_at(bootstrap), f"name-{three}"

    def broken() -> Iterator[pa.RecordBatch]:
        yield rows(three, 0, 10)
        raise KafkaliteError("the file is gone")

    with pytest.raises(KafkaliteError, match="the file is gone"):
        commit(options, name, broken(), None)
    assert values_in(bootstrap, three, 3) == []
    commit(options, name, [rows(three, 0, 10)], None)
    assert values_in(bootstrap, three, 3) == list(range(10))


def test_the_record_of_an_epoch_is_found_behind_many_aborted_ones(
    bootstrap: str, three: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, name = options_at(bootstrap), f"name-{three}"
    commit(options, name, [rows(three, 0, 10)], Epoch("query", 0))

    async def refuse(self: object) -> None:
        raise KafkaliteError("no commit")

    with monkeypatch.context() as patch:
        patch.setattr(epochs.TransactionalProducer, "commit", refuse)
        for _ in range(epochs.TAIL):
            with pytest.raises(KafkaliteError, match="no commit"):
                commit(options, name, [], Epoch("query", 1))
    assert not commit(options, name, [rows(three, 0, 10)], Epoch("query", 0))
    assert values_in(bootstrap, three, 3) == list(range(10))


COMMIT = """
import sys
from kafkalite.spark.sink.epochs import Epoch, commit
from kafkalite.spark.sink.options import parse_sink_options
from kafkalite.spark.sink.messages import Staged
from kafkalite.spark.sink.staging import Staging
address, place, name, path, number = sys.argv[1:]
given = {"kafka.bootstrap.servers": address, "deliveryGuarantee": "exactly-once"}
options = parse_sink_options(given | {"stagingLocation": place})
staging = Staging(place, name)
print("ready", flush=True)
commit(options, name, staging.read(Staged(path, 1)), Epoch("query", int(number)))
print("committed", flush=True)
"""


@pytest.mark.slow
def test_a_driver_may_die_at_any_moment_of_a_commit(
    bootstrap: str, three: str, tmp_path: Path
) -> None:
    """kill -9 at random; the next one does not know whether the epoch was committed."""
    name, random = f"name-{three}", Random(7)
    staging = Staging(str(tmp_path), name)
    number = killed = 0
    while killed < KILLS:
        staged = staging.write(number, "task", iter([rows(three, number * ROWS, ROWS)]))
        command = [sys.executable, "-c", COMMIT, bootstrap, str(tmp_path), name, staged.path]
        with subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            try:
                process.wait(random.uniform(0, 0.3))
            except subprocess.TimeoutExpired:
                process.kill()
                killed += 1
            number += process.stdout.read() == b"committed\n"
    # The last one may have been killed after it had said that it was done.
    staged = staging.write(number, "last", iter([rows(three, number * ROWS, ROWS)]))
    commit(options_at(bootstrap), name, staging.read(staged), Epoch("query", number))
    expected = list(range(ROWS * (number + 1)))
    assert values_in(bootstrap, three, 3) == expected


def test_a_check_has_the_transactional_id_and_may_refuse(bootstrap: str, three: str) -> None:
    options, name = options_at(bootstrap), f"name-{three}"

    async def refuses() -> None:
        raise KafkaliteError("the state was moved away")

    async def is_overtaken() -> None:
        async with TransactionalProducer(bootstrap, name):
            pass

    with pytest.raises(KafkaliteError, match="moved away"):
        commit(options, name, [rows(three, 0, 10)], Epoch("query", 0), refuses)
    with pytest.raises(KafkaliteError, match=r"FENCED|INVALID_PRODUCER_EPOCH"):
        commit(options, name, [rows(three, 0, 10)], Epoch("query", 0), is_overtaken)
    assert values_in(bootstrap, three, 3) == []
