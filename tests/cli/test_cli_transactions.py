"""`kafkalite transactions` on a running broker, with transactions begun by our own producer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from kafkalite.clients.sync import TransactionalProducer
from kafkalite.errors import KafkaliteError

Run = Callable[..., Any]


@contextmanager
def begun(bootstrap: str, transactional_id: str, topic: str) -> Iterator[TransactionalProducer]:
    """A producer with a transaction open and a record of it acknowledged."""
    producer = TransactionalProducer(bootstrap, transactional_id)
    producer.start()
    try:
        producer.begin()
        producer.send(topic, b"open", partition=0)
        producer.flush()
        yield producer
    finally:
        with suppress(KafkaliteError):  # a fenced one cannot say goodbye
            producer.close(flush=False)


def test_a_transaction_is_shown_and_aborted(
    kafkalite: Run, refused: Run, make_topic: Run, bootstrap: str, group: str
) -> None:
    topic, name = make_topic(1), f"txn-{group}"

    def command(run: Run, *arguments: str) -> Any:
        return run("transactions", *arguments)

    with begun(bootstrap, name, topic):
        listed = command(kafkalite, "list", "--state", "Ongoing", "--json").json
        (own,) = [t for t in listed if t["transactional_id"] == name]
        assert own["state"] == "Ongoing"
        (told,) = command(kafkalite, "describe", name, "--json").json
        assert (told["state"], told["partitions"]) == ("Ongoing", [f"{topic}-0"])
        assert told["open_ms"] >= 0
        text = command(kafkalite, "describe", name).lines
        assert text[0].startswith(f"{name}: Ongoing, open for")
        (producer,) = command(kafkalite, "producers", topic, "--open", "--json").json
        assert (producer["producer_id"], producer["start_offset"]) == (told["producer_id"], 0)
        hanging = command(kafkalite, "find-hanging", topic, "--longer-than", "0ms")
        assert len(hanging.lines) == 1  # the coordinator knows it: only the headers
        assert "pass --yes" in command(refused, "abort", name)
        done = command(kafkalite, "abort", name, "--yes", "--json").json
        assert done["producer_epoch"] > told["producer_epoch"]
        (after,) = command(kafkalite, "describe", name, "--json").json
        assert after["state"] != "Ongoing"
        assert command(kafkalite, "producers", topic, "--open", "--json").json == []
    read = ["consume", topic, "--until-end"]
    assert kafkalite(*read).lines == ["open"]
    assert kafkalite(*read, "--committed").lines == []


def test_a_transaction_is_aborted_where_it_hangs(
    kafkalite: Run, refused: Run, make_topic: Run, bootstrap: str, group: str
) -> None:
    topic, name = make_topic(1), f"txn-{group}"
    with begun(bootstrap, name, topic):
        abort = ["transactions", "abort", "--yes", "--hanging", f"{topic}:0", "--start-offset"]
        assert refused(*abort, "7") == f"{topic}-0: no open transaction begins at offset 7"
        kafkalite(*abort, "0")
        assert kafkalite("transactions", "producers", topic, "--open", "--json").json == []


def test_committed_records_are_read(kafkalite: Run, make_topic: Run, bootstrap: str,
                                    group: str) -> None:  # fmt: skip
    topic = make_topic(1)
    with begun(bootstrap, f"txn-{group}", topic) as producer:
        producer.commit()
    assert kafkalite("consume", topic, "--until-end", "--committed").lines == ["open"]


def test_what_is_not_known(kafkalite: Run, refused: Run, group: str) -> None:
    for command in (["describe", group], ["abort", group, "--yes"]):
        told = refused("transactions", *command)
        assert told == (
            f"transactional id {group}: no such transactional id (TRANSACTIONAL_ID_NOT_FOUND)"
        )
    assert "no transaction state 'Dozing'" in refused("transactions", "list", "--state", "Dozing")
    for flags in (["abort"], ["abort", "x", "--hanging", "t:0"], ["abort", "--hanging", "t:0"],
                  ["abort", "--hanging", "t", "--start-offset", "0", "--yes"],
                  ["list", "--longer-than", "soon"]):  # fmt: skip
        kafkalite("transactions", *flags, code=2)


@pytest.mark.parametrize("flag", ["--longer-than", "--producer-id"])
def test_the_list_is_narrowed_down(kafkalite: Run, flag: str) -> None:
    value = "100w" if flag == "--longer-than" else "987654321"
    assert kafkalite("transactions", "list", flag, value, "--json").json == []
