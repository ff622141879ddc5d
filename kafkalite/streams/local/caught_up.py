"""Whether a group has read its inputs to their ends.                                     [IO]

Owns   nothing; a worker asks, and goes on until the answer is yes.
Fails  with the errors of the broker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.core.types import TopicPartition
from kafkalite.streams.local.restore import log_ends
from kafkalite.streams.local.task_inputs import TaskInputs


@dataclass(frozen=True, slots=True)
class Ends:
    """Where each input ends, and whether the group has read all of them to there."""

    offsets: Mapping[TopicPartition, int]
    are_reached: bool


def is_behind(consumer: Consumer, mine: Collection[TopicPartition]) -> bool:
    """Whether this member knows of records that it has not read: nobody need be asked then, nor a
    commit be made to compare."""
    return any(consumer.lag(tp) for tp in mine)


async def look_at_ends(
    client: Client, consumer: Consumer, inputs: TaskInputs, mine: Collection[TopicPartition]
) -> Ends:
    """Compares the ends with the positions of this member, who reads `mine`, and with what the
    other members have committed."""
    external = inputs.partitions(internal=False)
    internal = inputs.partitions(internal=True)
    others = [tp for tp in (*external, *internal) if tp not in mine]
    committed = await consumer.committed(others) if others else {}
    # Ends come last: what follows from a committed record is in the log by then, though
    # perhaps in a transaction whose markers are still on their way.
    ends = await consumer.end_offsets(external)
    ends |= await log_ends(client, internal)

    def position(tp: TopicPartition) -> int:
        entry = committed.get(tp)
        reached = consumer.position(tp) if tp in mine else entry and entry.offset
        return reached or 0

    return Ends(ends, all(position(tp) >= end for tp, end in ends.items()))
