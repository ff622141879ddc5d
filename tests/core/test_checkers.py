"""The checkers of histories: true ones pass, and each kind of damage is found by its check."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.types import TopicPartition
from kafkalite.testing import checkers
from kafkalite.testing.checkers import (
    Commit,
    CommittedOffset,
    End,
    Held,
    History,
    Leader,
    Read,
    Replica,
    Send,
    Transaction,
    TransactionEnd,
    at_rest,
    check_all,
)

TP = TopicPartition("log", 0)
OTHER = TopicPartition("log", 1)
COMMITTED, ABORTED, UNKNOWN = (
    TransactionEnd.COMMITTED,
    TransactionEnd.ABORTED,
    TransactionEnd.UNKNOWN,
)


def send(
    value: bytes, offset: int | None, began: float = 0, ended: float | None = 100, **more: Any
) -> Send:
    return Send("p", TP, value, began, ended, offset, **more)


def read(position: int, values: list[bytes], began: float = 0, ended: float = 200) -> Read:
    records = dict(enumerate(values, position))
    return Read("r", TP, position, position + len(values), records, began, ended)


def found(history: History) -> set[str]:
    return {violation.check for violation in check_all(history)}


# ---- true histories, by chance -----------------------------------------------------------------


@dataclass
class Life:
    """One partition and one group that take effect at once, seen by clients with delays."""

    random: Random

    def times(self, point: float) -> tuple[float, float]:
        return point - self.random.random() * 3, point + self.random.random() * 3

    def history(self, count: int) -> History:
        random, history = self.random, History()
        log: dict[TopicPartition, list[bytes]] = {TP: [], OTHER: []}
        free = {"p0": 0.0, "p1": 0.0}  # a producer's sends follow one another
        committed: int | None = None
        for step in range(count):
            point, partition = float(step), random.choice([TP, OTHER])
            values = log[partition]
            began, ended = self.times(point)
            match random.randrange(5):
                case 0 | 1:
                    producer = random.choice(["p0", "p1"])
                    value = b"%s:%d" % (producer.encode(), step)
                    began = max(began, min(point, free[producer]))
                    free[producer] = point
                    fate = random.randrange(10)
                    if fate:
                        values.append(value)
                    history.sends.append(
                        Send(producer, partition, value, began, ended, len(values) - 1)
                        if fate > 1
                        else Send(producer, partition, value, began)
                    )
                case 2:
                    position = random.randint(0, len(values))
                    records = dict(enumerate(values[position:], position))
                    history.reads.append(
                        Read("r", partition, position, len(values), records, began, ended)
                    )
                case 3:
                    history.ends.append(End(partition, len(values), began, ended))
                case _ if random.random() < 0.5:
                    committed = (committed or 0) + random.randint(0, 3)
                    is_told = random.random() < 0.9
                    history.commits.append(
                        Commit("g", partition, committed, began, ended if is_told else None)
                    )
                    history.commits.append(
                        Commit("g", OTHER if partition is TP else TP, committed, began, None)
                    )
                case _:
                    for each in (TP, OTHER):
                        history.committed.append(
                            CommittedOffset("g", each, committed, began, ended)
                        )
        history.logs = {tp: dict(enumerate(values)) for tp, values in log.items()}
        for node_id in range(3):
            end = random.randint(0, len(log[TP]))
            held = {o: (0, v) for o, v in enumerate(log[TP][: end + random.randint(0, 2)])}
            history.replicas.append(Replica(node_id, TP, 0, end, held))
        return history


histories = st.builds(
    lambda seed, count: Life(Random(seed)).history(count), st.integers(0), st.integers(0, 80)
)


@given(histories)
def test_true_histories_pass(history: History) -> None:
    assert check_all(history) == []


@given(histories, st.randoms(use_true_random=False))
def test_a_lost_record_is_found(history: History, random: Random) -> None:
    kept = [each for each in history.sends if each.offset is not None]
    if kept:
        gone = random.choice(kept)
        log = dict(history.logs[gone.partition])
        log.pop(gone.offset or 0)
        history.logs[gone.partition] = log
        assert "acknowledged" in found(history)


@given(histories, st.randoms(use_true_random=False))
def test_a_record_that_is_there_twice_is_found(history: History, random: Random) -> None:
    log = dict(history.logs[TP])
    if log:
        log[len(log)] = random.choice(list(log.values()))
        history.logs[TP] = log
        assert "once" in found(history)


@given(histories, st.randoms(use_true_random=False))
def test_a_shortened_read_end_is_found(history: History, random: Random) -> None:
    """The end falls behind an append that was acknowledged long before."""
    known = [each for each in history.sends if each.partition == TP and each.offset is not None]
    if known:
        last = random.choice(known)
        assert last.offset is not None
        history.ends.append(End(TP, last.offset, 1_000, 1_001))
        assert "linearizable" in found(history)


@given(histories, st.randoms(use_true_random=False))
def test_a_read_with_a_hole_is_found(history: History, random: Random) -> None:
    known = [s for s in history.sends if s.partition == TP and s.offset is not None]
    if known:
        hole = random.choice(known).offset
        values = {o: v for o, v in history.logs[TP].items() if o != hole}
        history.reads.append(Read("r", TP, 0, len(history.logs[TP]), values, 900, 901))
        assert "linearizable" in found(history)


@given(histories, st.randoms(use_true_random=False))
def test_a_committed_offset_that_goes_back_is_found(history: History, random: Random) -> None:
    known = [c for c in history.commits if c.ended is not None and c.offset > 0]
    if known:
        after = random.choice(known)
        earlier = after.offset - 1
        history.committed.append(CommittedOffset("g", after.partition, earlier, 900, 901))
        assert "commits" in found(history)


@given(histories, st.randoms(use_true_random=False))
def test_a_replica_that_differs_is_found(history: History, random: Random) -> None:
    ends = [min(a.high_watermark, b.high_watermark) for a in history.replicas
            for b in history.replicas if a is not b]  # fmt: skip
    if max(ends) > 0:
        offset = random.randrange(max(ends))
        able = [n for n, each in enumerate(history.replicas) if each.high_watermark > offset]
        place = random.choice(able)
        records = dict(history.replicas[place].records)
        epoch, value = records[offset]
        records[offset] = random.choice([(epoch + 1, value), (epoch, value + b"!")])
        history.replicas[place] = replace(history.replicas[place], records=records)
        assert "replicas" in found(history)


# ---- by hand -----------------------------------------------------------------------------------


def test_nothing_is_no_violation() -> None:
    assert check_all(History()) == []


def test_acknowledged_is_at_its_offset() -> None:
    log = {0: b"a", 1: b"b"}
    told = [send(b"a", 0, 0, 1), send(b"b", 1, 2, 3)]
    assert found(History(sends=told, logs={TP: log})) == set()
    assert found(History(sends=told, logs={TP: {0: b"a"}})) == {"acknowledged"}
    moved = History(sends=told, logs={TP: {0: b"a", 2: b"b"}})
    assert found(moved) == {"acknowledged"}
    (violation,) = check_all(moved)
    assert str(violation) == (
        "acknowledged: log-0 offset 1: nothing instead of b'b', which p was told is there"
    )
    deleted = History(sends=told, logs={TP: {1: b"b"}}, log_starts={TP: 1})
    assert found(deleted) == set()


def test_what_was_sent_before_an_unclean_election_may_be_gone_but_is_nowhere_else() -> None:
    told = [send(b"a", 0, 0, 1), send(b"b", 1, 2, 3), send(b"c", 1, 6, 7)]

    def of(log: dict[int, bytes], **more: Any) -> set[str]:
        return found(History(sends=told, logs={TP: log}, forgiven_until={TP: 5}, **more))

    assert of({0: b"a", 1: b"c"}) == of({1: b"c"}) == set()
    assert of({0: b"a"}) == {"acknowledged"}, "sent after the election"
    assert of({0: b"b", 1: b"c"}) == {"acknowledged"}, "at another offset"
    assert of({0: b"b", 1: b"c"}, unclean_at={TP: [3, 4]}) == set(), "where it was sent first"
    assert of({0: b"b", 1: b"c"}, unclean_at={TP: [1, 4]}) == {"acknowledged"}
    assert found(History(sends=told, logs={TP: {1: b"c"}}, forgiven_until={OTHER: 5})) != set()
    early, late = read(0, [b"a", b"b"], 4, 5), read(0, [b"a", b"c"], 6, 8)
    assert of({0: b"a", 1: b"c"}, reads=[early, late]) == set()
    assert of({0: b"a", 1: b"c"}, reads=[replace(early, began=6)]) == {"linearizable"}
    assert of({0: b"a", 1: b"c"}, ends=[End(TP, 2, 3, 4), End(TP, 1, 6, 6.5)]) == set()
    assert of({0: b"a", 1: b"c"}, ends=[End(TP, 2, 6, 7), End(TP, 1, 8, 9)]) == {"linearizable"}


def test_what_was_deleted_does_not_come_back_with_the_next_topic_of_that_name() -> None:
    told = [send(b"a", 0, 0, 1), send(b"b", 1, 2, 9)]
    for deleted_at, expected in ((0.5, set()), (5, {"acknowledged"})):
        history = History(sends=told, logs={TP: {0: b"a"}}, forgiven_until={TP: deleted_at + 3})
        history.deleted_at[TP] = deleted_at
        assert found(history) == expected
    history = History(sends=told, logs={TP: {1: b"b"}}, forgiven_until={TP: 8})
    history.deleted_at[TP] = 5
    assert found(history) == set(), "it may be of the next one"


def test_refused_is_not_there() -> None:
    refused = send(b"a", None, is_refused=True)
    assert found(History(sends=[refused], logs={TP: {}})) == set()
    assert found(History(sends=[refused], logs={TP: {0: b"a"}})) == {"acknowledged"}


def test_unknown_may_be_there_or_not() -> None:
    unknown = send(b"a", None, 0, None)
    for log in ({}, {0: b"a"}):
        assert found(History(sends=[unknown], logs={TP: log})) == set()


def test_once_and_in_order_for_idempotent_producers() -> None:
    told = [send(b"a", None, 0, None), send(b"b", None, 0, None)]
    assert found(History(sends=told, logs={TP: {0: b"a", 1: b"b"}})) == set()
    assert found(History(sends=told, logs={TP: {0: b"b", 1: b"a"}})) == {"once"}
    assert found(History(sends=told, logs={TP: {0: b"a", 1: b"b", 2: b"a"}})) == {"once"}
    others = [replace(each, is_idempotent=False) for each in told]
    assert found(History(sends=others, logs={TP: {0: b"b", 1: b"a", 2: b"b"}})) == set()
    two = [told[0], replace(told[1], producer="q")]
    assert found(History(sends=two, logs={TP: {0: b"b", 1: b"a"}})) == set()


def test_replicas_may_differ_beyond_the_high_watermark_alone() -> None:
    one = Replica(1, TP, 0, 2, {0: (0, b"a"), 1: (0, b"b"), 2: (0, b"c")})
    other = Replica(2, TP, 1, 3, {1: (0, b"b"), 2: (1, b"d")})
    assert found(History(replicas=[one, other])) == set()
    ahead = replace(one, high_watermark=3)
    (violation,) = check_all(History(replicas=[ahead, other]))
    assert violation.check == "replicas"
    assert "log-0 offset 2" in violation.what
    short = replace(other, records={1: (0, b"b")})
    assert found(History(replicas=[ahead, short])) == {"replicas"}
    assert found(History(replicas=[ahead, replace(other, partition=OTHER)])) == set()


def test_an_epoch_has_one_leader() -> None:
    true = [Leader(TP, 0, 1), Leader(TP, 1, 2), Leader(TP, 1, 2), Leader(OTHER, 1, 3)]
    assert found(History(leaders=true)) == set()
    assert found(History(leaders=[*true, Leader(TP, 1, 3)])) == {"leaders"}
    assert found(History(leaders=[*true, Leader(TP, 0, 1)])) == {"leaders"}


def test_what_leaders_call_committed_is_in_the_logs_of_later_ones() -> None:
    true = [
        Held(1, 1, TP, 0, True, 5, 9),
        Held(2, 1, TP, 0, False, 3, 7),
        Held(1, 1, TP, 0, True, 6, 9),
        Held(2, 1, TP, 1, True, 3, 7),  # it does not know yet how far its predecessor came
        Held(1, 2, TP, 1, False, 0, 7),  # started again
    ]
    assert found(History(held=true)) == set()
    assert found(History(held=[*true, Held(2, 1, TP, 1, True, 2, 7)])) == {"held"}
    assert found(History(held=[*true, Held(3, 1, TP, 1, True, 3, 7)])) == {"held"}
    assert found(History(held=[*true, Held(3, 1, TP, 2, True, 3, 5)])) == {"held"}
    late = Held(1, 2, TP, 0, True, 8, 9)  # commits in an epoch that is over
    assert found(History(held=[*true, late])) == {"held"}


def test_an_unclean_election_may_take_back_what_was_committed() -> None:
    seen = [
        Held(1, 1, TP, 3, True, 8, 9),
        Held(3, 1, TP, 3, False, 7, 7),
        Held(2, 1, TP, 5, True, 4, 4),
        Held(3, 1, TP, 5, False, 4, 4),
    ]
    assert found(History(held=seen)) == {"held"}
    assert found(History(held=seen, unclean_epochs={TP: {5}})) == set()
    assert found(History(held=seen, unclean_epochs={TP: {6}, OTHER: {5}})) == {"held"}
    assert found(History(held=seen, unclean_epochs={TP: {3}})) == {"held"}, "that was before"
    later = [*seen, Held(3, 1, TP, 6, False, 3, 4)]
    assert found(History(held=later, unclean_epochs={TP: {5}})) == {"held"}
    risen_before = [Held(3, 1, TP, 3, False, 2, 7), Held(3, 1, TP, 5, False, 7, 7), *seen[2:]]
    assert found(History(held=risen_before, unclean_epochs={TP: {5}})) == set()
    assert found(History(held=risen_before, unclean_epochs={TP: {3}})) == {"held"}


def test_replicas_at_rest_are_equal_to_their_ends() -> None:
    def told(*more: tuple[int, dict[int, tuple[int, bytes]]]) -> int:
        held = [Replica(n, TP, 0, *each) for n, each in enumerate(more)]
        return len(list(at_rest(History(replicas=held))))

    log = {0: (0, b"a"), 1: (1, b"b")}
    assert told((2, log), (2, log)) == 0
    assert told((2, log), (1, log)) == 1, "one has not heard what is committed"
    assert told((2, log), (2, {0: (0, b"a")})) == 1
    assert told((2, log), (2, {**log, 1: (0, b"b")})) == 1


def test_commits_never_go_back() -> None:
    made = [Commit("g", TP, 5, 0, 1), Commit("g", TP, 9, 2, 3), Commit("g", TP, 12, 4, None)]

    def told(*answers: tuple[int | None, float, float]) -> set[str]:
        seen = [CommittedOffset("g", TP, *answer) for answer in answers]
        return found(History(commits=made, committed=seen))

    assert told((None, -2, -1), (5, 1.5, 1.6), (9, 3.5, 3.6), (12, 5, 6), (12, 7, 8)) == set()
    assert told((5, 2.5, 2.6)) == set(), "the second commit is under way"
    assert told((5, 3.5, 3.6)) == {"commits"}
    assert told((None, 1.5, 1.6)) == {"commits"}
    assert told((12, 5, 6), (9, 7, 8)) == {"commits"}, "it was seen before"
    assert told((9, 5, 6), (12, 5.5, 7)) == set()
    assert told((7, 1.5, 3.5)) == {"commits"}, "nobody committed 7"
    assert told((12, 1.2, 1.3)) == {"commits"}, "nobody had committed 12 yet"


def test_transactions_are_whole() -> None:
    def told(end: TransactionEnd, *logs: dict[int, bytes], reads: Any = ()) -> set[str]:
        transaction = Transaction("t", {TP: (b"a", b"b"), OTHER: (b"c",)}, end)
        held = dict(zip((TP, OTHER), logs, strict=True))
        return found(History(transactions=[transaction], logs=held, reads=list(reads)))

    whole, none = ({0: b"a", 1: b"b"}, {0: b"c"}), ({}, {})
    torn = ({0: b"a", 1: b"b"}, {})
    assert told(COMMITTED, *whole) == told(UNKNOWN, *whole) == set()
    assert told(ABORTED, *none) == told(UNKNOWN, *none) == set()
    for end, logs in ((COMMITTED, none), (ABORTED, whole), *((e, torn) for e in TransactionEnd)):
        assert told(end, *logs) == {"transactions"}, (end, logs)
    seen = read(0, [b"a"])
    assert told(ABORTED, *none, reads=[seen]) == {"transactions"}
    assert told(UNKNOWN, *none, reads=[seen]) == {"transactions"}
    assert told(ABORTED, *none, reads=[replace(seen, is_read_committed=False)]) == set()


def test_the_order_of_offsets_agrees_with_time() -> None:
    together = [send(b"a", 1, 0, 10), send(b"b", 0, 5, 15)]
    assert found(History(sends=together)) == set()
    one_after_the_other = [send(b"a", 1, 0, 4), send(b"b", 0, 5, 15)]
    assert found(History(sends=one_after_the_other)) == {"linearizable"}


@pytest.mark.parametrize(
    ("reads", "is_true"),
    [
        ([read(0, [b"a", b"b"])], True),
        ([read(1, [b"b"])], True),
        ([read(0, [b"b"])], False),  # another value at the offset
        ([read(0, [b"a", b"x"])], False),  # nobody sent it
        ([read(0, [b"a", b"b"], 0, 4)], False),  # before it was sent
        ([Read("r", TP, 0, 2, {1: b"b"}, 0, 200)], False),  # a hole
        ([Read("r", TP, 1, 2, {0: b"a", 1: b"b"}, 0, 200)], False),  # not asked for
    ],
)
def test_reads_agree_with_the_log(reads: list[Read], is_true: bool) -> None:
    sends = [send(b"a", 0, 0, 4), send(b"b", 1, 5, 15)]
    assert found(History(sends=sends, reads=reads)) == (set() if is_true else {"linearizable"})


def test_readers_of_committed_records_pass_aborted_ones() -> None:
    sends = [send(b"a", 0, 0, 1), send(b"b", 1, 2, 3)]
    passed = Read("r", TP, 0, 2, {1: b"b"}, 5, 6)
    aborted = Transaction("p", {TP: (b"a",)}, ABORTED)
    history = History(sends=sends, reads=[passed], transactions=[aborted])
    assert found(history) == set()
    assert found(replace(history, transactions=[])) == {"linearizable"}


def test_the_end_never_falls() -> None:
    sends = [send(b"a", 0, 0, 4)]
    assert found(History(sends=sends, ends=[End(TP, 0, 3, 5), End(TP, 1, 5, 6)])) == set()
    assert found(History(sends=sends, ends=[End(TP, 0, 5, 6)])) == {"linearizable"}
    assert found(History(ends=[End(TP, 7, 0, 1), End(TP, 6, 2, 3)])) == {"linearizable"}
    assert found(History(ends=[End(TP, 7, 0, 5), End(TP, 6, 2, 6)])) == set()


def test_brokers_that_were_replaced_may_answer_as_of_then() -> None:
    made = [Commit("g", TP, 5, 0, 1), Commit("g", TP, 9, 2, 3)]
    late = CommittedOffset("g", TP, 5, 8, 9)
    history = History(commits=made, committed=[late], ends=[End(TP, 7, 2, 3), End(TP, 6, 8, 9)])
    assert found(history) == {"commits", "linearizable"}
    assert found(replace(history, staleness=4)) == {"commits", "linearizable"}
    assert found(replace(history, staleness=6)) == set()
    assert found(replace(history, stale=[(4, 7), (9.5, 10)])) == {"commits", "linearizable"}
    assert found(replace(history, stale=[(4, 8.5)])) == set()


def test_every_check_is_run() -> None:
    assert {check.__name__ for check in checkers.CHECKS} == {
        "acknowledged", "once", "replicas", "leaders", "held", "commits", "transactions",
        "linearizable",
    }  # fmt: skip
