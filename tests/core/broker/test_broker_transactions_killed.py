"""kill -9 between any two steps of a transaction's end: what was decided happens, all of it, once.

A broker in a process of its own kills itself where it is told to; another one goes on.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafkalite.core.protocol import transactions as t
from kafkalite.core.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkalite.core.protocol.groups import FindCoordinatorRequest
from kafkalite.core.protocol.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kafkalite.core.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kafkalite.core.protocol.records import batches, decode, encode
from kafkalite.core.types import Columns
from kafkalite.errors import ErrorCode

TOPICS = ("t", "u")
OFFSET = 17

# argv: data directory, the step, how many of its kind to let pass. It is killed before the step.
DYING = """
import asyncio, os, signal, sys
from pathlib import Path
from kafkalite.core.coordinators.runtime import Coordinators
from kafkalite.core.transactions.records import decode_key, decode_value
from kafkalite.core.transactions.markers import LocalMarkers
from kafkalite.node import start_node

step, left = sys.argv[2], int(sys.argv[3])
carry_out, write_one = Coordinators.carry_out, LocalMarkers._write_one

def reached(name):
    global left
    if name == step:
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

def watched(self, coordinator, outcome, *rest):
    for key, value in outcome.records:
        if self.topic == "__transaction_state":
            reached(decode_value("tx", value).state.label)
    carry_out(self, coordinator, outcome, *rest)

def watched_marker(self, *args):
    reached("marker")
    write_one(self, *args)

Coordinators.carry_out, LocalMarkers._write_one = watched, watched_marker

async def main():
    settings = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
    node = await start_node(Path(sys.argv[1]), "127.0.0.1:0", settings)
    print("{}:{}".format(*node.address), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


class Story:
    """One transaction over two topics and a group's offset, told to whatever broker there is."""

    def __init__(self, peer: Any) -> None:
        self.peer = peer
        self.identity = (-1, -1)

    async def begin(self) -> None:
        """Up to where all is written and nothing ended."""
        for topic in TOPICS:
            await self.peer.create(topic)
        for kind, name in ((0, "g"), (1, "tx")):
            found = await self.peer.ask(FindCoordinatorRequest(name, kind), 2)
            assert not found.error_code, found
        answer = await self.peer.ask(t.InitProducerIdRequest("tx", 60_000))
        self.identity = (answer.producer_id, answer.producer_epoch)
        wanted = tuple(t.AddPartitionsToTxnTopic(name, (0,)) for name in TOPICS)
        await self.peer.ask(t.AddPartitionsToTxnRequest("tx", *self.identity, wanted))
        for topic in TOPICS:
            await self.produce(topic)
        await self.peer.ask(t.AddOffsetsToTxnRequest("tx", *self.identity, "g"))
        partition = t.TxnOffsetCommitRequestPartition(0, OFFSET)
        topics = (t.TxnOffsetCommitRequestTopic("t", (partition,)),)
        committed = t.TxnOffsetCommitRequest("tx", "g", *self.identity, topics=topics)
        answer = await self.peer.ask(committed)
        assert not answer.topics[0].partitions[0].error_code, answer

    async def produce(self, topic: str) -> None:
        records = encode(
            Columns([None], [topic.encode()], [1_000]),
            producer_id=self.identity[0],
            producer_epoch=self.identity[1],
            base_sequence=0,
            transactional=True,
        )
        data = (TopicProduceData(topic, (PartitionProduceData(0, records),)),)
        answer = await self.peer.ask(ProduceRequest("tx", -1, 5_000, data), 9)
        assert not answer.responses[0].partition_responses[0].error_code, answer

    async def end(self, *, commit: bool) -> ErrorCode:
        """Tries until it is known."""
        while True:
            answer = await self.peer.ask(t.EndTxnRequest("tx", *self.identity, commit))
            error: ErrorCode = answer.error_code
            if error not in (
                ErrorCode.CONCURRENT_TRANSACTIONS,
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ):
                return error

    async def state(self) -> str:
        answer = await self.peer.ask(t.DescribeTransactionsRequest(("tx",)))
        found = answer.transaction_states[0]
        return str(found.transaction_state or found.error_code.name)

    async def committed(self, topic: str) -> list[bytes]:
        """What a reader of committed records makes of the answer."""
        partition = FetchPartition(0, fetch_offset=0, partition_max_bytes=1 << 20)
        topics = (FetchTopic(topic, partitions=(partition,)),)
        request = FetchRequest(topics=topics, max_wait_ms=0, min_bytes=1, isolation_level=1)
        data = (await self.peer.ask(request, 12)).responses[0].partitions[0]
        assert not data.error_code, data
        aborted = {(a.producer_id, a.first_offset) for a in data.aborted_transactions}
        values: list[bytes] = []
        raw = bytes(data.records or b"")
        for position, header in batches(raw):
            is_void = (header.producer_id, header.base_offset) in aborted
            if not header.is_control and not is_void:
                values += decode(raw, position).values
        return values

    async def offset(self) -> int:
        wanted = (OffsetFetchRequestTopics("t", (0,)),)
        groups = (OffsetFetchRequestGroup("g", topics=wanted),)
        answer = await self.peer.ask(OffsetFetchRequest(groups=groups, require_stable=True))
        partition = answer.groups[0].topics[0].partitions[0]
        assert not partition.error_code, partition
        offset: int = partition.committed_offset
        return offset


STEPS = [
    ("Prepare", 0, False),  # nothing is decided
    ("marker", 0, True),
    ("marker", 1, True),
    ("marker", 2, True),
    ("Complete", 0, True),
    ("Ongoing", 1, False),  # the transaction goes on with an offset's partition
]


@pytest.mark.slow
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(("step", "passed", "decided"), STEPS)
def test_what_was_decided_happens_and_what_was_not_can_still_be_decided(
    serve: Callable[..., Any],
    connect: Callable[[str], Any],
    tmp_path: Path,
    step: str,
    passed: int,
    *,
    decided: bool,
    commit: bool,
) -> None:
    if step in ("Prepare", "Complete"):
        step += "Commit" if commit else "Abort"
    data_dir = tmp_path / "data"

    async def dies(address: str) -> Story:
        story = Story(await connect(address))
        with pytest.raises((EOFError, ConnectionError)):
            await story.begin()
            error = await story.end(commit=commit)
            assert not error
            await story.peer.receive()  # it was answered before it died
        return story

    async def lives(address: str, identity: tuple[int, int]) -> None:
        story = Story(await connect(address))
        story.identity = identity
        end = "Complete" + ("Commit" if commit else "Abort")
        if decided:
            while (found := await story.state()) != end:
                assert found in (end.replace("Complete", "Prepare"), "COORDINATOR_LOAD_IN_PROGRESS")
            assert await story.end(commit=not commit) is ErrorCode.INVALID_TXN_STATE
        else:
            assert [await story.committed(topic) for topic in TOPICS] == [[], []]
        assert not await story.end(commit=commit)
        while await story.state() != end:
            pass
        values = [await story.committed(topic) for topic in TOPICS]
        assert values == ([[b"t"], [b"u"]] if commit else [[], []])
        assert await story.offset() == (OFFSET if commit and step != "Ongoing" else -1)

    command = [sys.executable, "-c", DYING, str(data_dir), step, str(passed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        story = asyncio.run(dies(process.stdout.readline().strip()))
        assert process.wait() == -9
    server = serve(data_dir)
    asyncio.run(lives(server.address, story.identity))
    assert server.stop() == 0
    assert "Traceback" not in server.stderr
