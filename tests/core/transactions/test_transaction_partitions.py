"""The partitions of a transaction: a set of pairs, and the bytes that the codec would make."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.protocol.codec import encode_with_version
from kafkalite.core.protocol.transaction_records import TransactionLogValue, TransactionPartitions
from kafkalite.core.transactions.partitions import NO_PARTITIONS, Partitions
from kafkalite.core.transactions.records import decode_value, transaction_record
from kafkalite.core.transactions.transaction import ONGOING, Transaction
from kafkalite.core.types import TopicPartition

pairs = st.builds(TopicPartition, st.sampled_from(["t", "u", "ü" * 9]), st.integers(0, 2**31 - 1))
many = st.lists(pairs | st.builds(TopicPartition, st.just("t"), st.integers(0, 3)))


@given(many, many)
def test_it_is_the_set_of_its_pairs(some: list[TopicPartition], more: list[TopicPartition]) -> None:
    one, other = Partitions(some), Partitions(more)
    both = one.union(other)
    assert both == set(some) | set(more)
    assert (len(both), both.topic_count) == (len(set(both)), len({each.topic for each in both}))
    assert (one, other) == (set(some), set(more)), "neither has changed"
    assert all((where in one) is (where in some) for where in more)
    assert hash(both) == hash(frozenset(both))
    assert both.union(other) is both
    assert [t for t, _ in both.sorted_topics()] == sorted({each.topic for each in both})
    assert Partitions.of_topics((each.topic, (each.partition,)) for each in some) == set(some)


@given(st.lists(many, min_size=1))
def test_a_record_holds_the_bytes_that_the_codec_makes(added: list[list[TopicPartition]]) -> None:
    partitions = NO_PARTITIONS
    for some in added:
        partitions = partitions.union(Partitions(some))
        partitions.encoded()  # kept for what does not change
    topics = dict.fromkeys(each.topic for each in partitions)
    entries = tuple(
        TransactionPartitions(name, tuple(sorted(n for t, n in partitions if t == name)))
        for name in topics
    )
    value = encode_with_version(TransactionLogValue(7, 2, 60_000, ONGOING, entries, 5, 4), 0)
    begun = Transaction("x", 7, 60_000, 5, 2, ONGOING, partitions, 4)
    assert transaction_record(begun)[1] == value
    assert decode_value("x", value) == begun
