"""The partitions of a transaction, by topic: a set that is cheap however large it is.        [P]

    topic ──> its numbers, and the bytes by which a record names them

A step of a transaction of 20,000 partitions copies a dict of topics and joins bytes. To look at
each partition, where that is needed at all, is for generators that others can interrupt.

Owns   the array of partitions in a record of `__transaction_state`, entry by entry.
Never  is changed: `union` makes a new set, which shares the topics that did not grow.
Source TransactionLogValue.json; `TransactionLogValue` is the definition of the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from struct import pack
from typing import Final

from kafkalite.core.types import TopicPartition, by_topic


class _Topic:
    """A topic's partitions. Their bytes are made when a record first needs them, and kept."""

    __slots__ = ("_encoded", "numbers")

    def __init__(self, numbers: frozenset[int]) -> None:
        self.numbers = numbers
        self._encoded: bytes | None = None

    def encoded(self, name: str) -> bytes:
        """The entry of a record's array: name (Int16 length), count, numbers in their order."""
        data = self._encoded
        if data is None:
            text, count = name.encode(), len(self.numbers)
            layout = f">h{len(text)}si{count}i"
            data = self._encoded = pack(layout, len(text), text, count, *sorted(self.numbers))
        return data


class Partitions(Set[TopicPartition]):
    """A set of partitions. Topics keep the order in which they were added."""

    __slots__ = ("_count", "_topics")

    def __init__(self, partitions: Iterable[TopicPartition] = ()) -> None:
        numbers = by_topic(partitions)
        self._topics = {name: _Topic(frozenset(each)) for name, each in numbers.items()}
        self._count = sum(len(topic.numbers) for topic in self._topics.values())

    @classmethod
    def of_topics(cls, topics: Iterable[tuple[str, Iterable[int]]]) -> Partitions:
        """The partitions of topics, each given with its numbers."""
        made = cls()
        for name, numbers in topics:
            made._add(name, frozenset(numbers))
        return made

    def __contains__(self, where: object) -> bool:
        if not isinstance(where, TopicPartition):
            return False
        topic = self._topics.get(where.topic)
        return topic is not None and where.partition in topic.numbers

    def __iter__(self) -> Iterator[TopicPartition]:
        for name, topic in self._topics.items():
            for number in sorted(topic.numbers):
                yield TopicPartition(name, number)

    def __len__(self) -> int:
        return self._count

    def __hash__(self) -> int:
        return self._hash()

    def __repr__(self) -> str:
        return f"Partitions({list(map(str, self))})"

    def union(self, other: Partitions) -> Partitions:
        """The partitions of both; this very set where it has all of the other.

        A topic that both have costs some 1 us, any other a copied reference.
        """
        if not self._topics:
            return other
        shared = self._topics.keys() & other._topics.keys()
        made = Partitions()
        made._topics = self._topics | other._topics
        made._count = self._count + other._count
        for name in shared:
            mine, others = self._topics[name], other._topics[name]
            both = mine.numbers | others.numbers
            made._count += len(both) - len(mine.numbers) - len(others.numbers)
            made._topics[name] = mine if len(both) == len(mine.numbers) else _Topic(both)
        return self if made._count == self._count else made

    def sorted_topics(self) -> Iterator[tuple[str, list[int]]]:
        """Topics in the order of their names, each with the sorted numbers of its partitions."""
        for name in sorted(self._topics):
            yield name, sorted(self._topics[name].numbers)

    @property
    def topic_count(self) -> int:
        """How many topics there are."""
        return len(self._topics)

    def encoded(self) -> bytes:
        """The entries of a record's array, one after the other."""
        return b"".join([topic.encoded(name) for name, topic in self._topics.items()])

    def _add(self, name: str, numbers: frozenset[int]) -> None:
        known = self._topics.get(name)
        both = numbers if known is None else known.numbers | numbers
        self._count += len(both) - (0 if known is None else len(known.numbers))
        self._topics[name] = _Topic(both)


NO_PARTITIONS: Final = Partitions()
