"""Peers that send what no client would: only their own connection pays, and nothing is stored."""

from __future__ import annotations

import gzip
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kafkalite.core.protocol import records
from kafkalite.core.protocol.api_versions import ApiVersionsRequest
from kafkalite.core.protocol.apis import API, ApiKey
from kafkalite.core.protocol.checksum import crc32c
from kafkalite.core.protocol.compression import Compression
from kafkalite.core.protocol.connection import FRAME_BYTES_MAX, ClientConnection
from kafkalite.core.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkalite.core.protocol.groups import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
)
from kafkalite.core.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kafkalite.core.protocol.metadata import MetadataRequest, MetadataRequestTopic
from kafkalite.core.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kafkalite.core.protocol.topics import CreatableTopic, CreateTopicsRequest
from kafkalite.core.types import Columns
from kafkalite.errors import ErrorCode

SECONDS_MAX = 30.0
TOPIC = "kept"
LATEST = -1
COLUMNS = Columns([b"k", b"l"], [b"v", b"w"], [1_000, 1_001])
BATCH = records.encode(COLUMNS)
PRODUCER = 4_711


class Peer:
    """A client without manners, over a socket that blocks."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), SECONDS_MAX)
        self._frames = ClientConnection("hostile")

    def close(self) -> None:
        self.socket.close()

    def ask(self, request: Any, version: int) -> Any:
        """The answer to a request; EOFError when the broker hangs up instead."""
        _, parts = self._frames.send(request, version)
        self.socket.sendall(b"".join(parts))
        while (event := self._frames.next_event()) is None:
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError
            self._frames.receive_data(data)
        return event.message

    def send(self, data: bytes, *, is_last: bool = False) -> None:
        """Sends bytes; the broker may have hung up already."""
        try:
            self.socket.sendall(data)
            if is_last:
                self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def until_hung_up_on(self) -> bytes:
        """What the broker says before it hangs up; it must do so."""
        said = b""
        try:
            while data := self.socket.recv(1 << 16):
                said += data
        except ConnectionResetError:
            pass
        return said


@pytest.fixture(scope="module")
def server(serve: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A broker with one topic, in which there is one batch."""
    overrides = {"auto.create.topics.enable": "false", "offsets.topic.num.partitions": "1"}
    server = serve(tmp_path_factory.mktemp("hostile"), overrides=overrides)
    with closing(Peer(server.address)) as peer:
        created = peer.ask(CreateTopicsRequest((CreatableTopic(TOPIC, 1, 1, (), ()),)), 5)
        assert created.topics[0].error_code is ErrorCode.NONE
        assert produce(peer, in_sequence(0)) is ErrorCode.NONE
    return server


@pytest.fixture(scope="module")
def bystander(server: Any) -> Iterator[Peer]:
    """Somebody who was connected all the time."""
    with closing(Peer(server.address)) as peer:
        yield peer


@pytest.fixture(autouse=True)
def unharmed(server: Any, bystander: Peer) -> Iterator[None]:
    """After each test: old connections and new ones are served, nothing is stored, no fault."""
    check(bystander)
    yield
    check(bystander)
    with closing(Peer(server.address)) as newcomer:
        check(newcomer)
    assert "Traceback" not in server.stderr


def check(peer: Peer) -> None:
    """The topics, the log's end and the log's bytes are what they were."""
    metadata = peer.ask(MetadataRequest(None), 9)
    assert {topic.name for topic in metadata.topics} <= {TOPIC, "__consumer_offsets"}
    assert end_offset(peer) == 2
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=0, topics=(FetchTopic(TOPIC, partitions=(partition,)),)
    )
    (answer,) = peer.ask(request, 11).responses[0].partitions
    assert answer.error_code is ErrorCode.NONE
    assert records.decode_all(answer.records).values == [b"v", b"w"]


def end_offset(peer: Peer) -> int:
    asked = ListOffsetsTopic(TOPIC, (ListOffsetsPartition(0, timestamp=LATEST),))
    answer = peer.ask(ListOffsetsRequest(-1, topics=(asked,)), 6)
    offset: int = answer.topics[0].partitions[0].offset
    return offset


def produce(peer: Peer, batch: bytes | None, acks: int = -1, version: int = 8) -> ErrorCode:
    data = TopicProduceData(TOPIC, (PartitionProduceData(0, batch),))
    answer = peer.ask(ProduceRequest(acks=acks, timeout_ms=1_000, topic_data=(data,)), version)
    code: ErrorCode = answer.responses[0].partition_responses[0].error_code
    return code


def in_sequence(sequence: int, epoch: int = 3) -> bytes:
    """The topic's one batch, or what its producer might send then."""
    ids = {"producer_id": PRODUCER, "producer_epoch": epoch, "base_sequence": sequence}
    return records.encode(COLUMNS, **ids)


def advertised(server: Any) -> dict[ApiKey, tuple[int, int]]:
    with closing(Peer(server.address)) as peer:
        answer = peer.ask(ApiVersionsRequest("test", "1"), 3)
    return {ApiKey(api.api_key): (api.min_version, api.max_version) for api in answer.api_keys}


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def header(key: int, version: int, *, flexible: bool = False) -> bytes:
    return struct.pack(">hhih", key, version, 7, 4) + b"evil" + (b"\0" if flexible else b"")


# ---- noise -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_random_bytes(server: Any, seed: int) -> None:
    random = Random(seed)
    for _ in range(50):
        with closing(Peer(server.address)) as peer:
            peer.send(random.randbytes(random.randrange(1, 4_096)), is_last=True)
            assert peer.until_hung_up_on() == b""


@pytest.mark.parametrize("seed", range(4))
def test_random_bytes_behind_an_honest_size(server: Any, seed: int) -> None:
    random = Random(seed)
    for _ in range(50):
        with closing(Peer(server.address)) as peer:
            peer.send(framed(random.randbytes(random.randrange(1, 200))))
            peer.send(b"", is_last=True)
            peer.until_hung_up_on()


def test_random_bytes_behind_every_header(server: Any) -> None:
    """All APIs in all versions; a body of zeros says most that can be said in a few bytes."""
    random = Random(1)
    for key, (first, last) in advertised(server).items():
        for version in range(first, last + 1):
            flexible = version >= API[key].flexible_since
            for body in (random.randbytes(random.randrange(1, 100)), b"\xff" * 40):
                with closing(Peer(server.address)) as peer:
                    peer.send(framed(header(key, version, flexible=flexible) + body), is_last=True)
                    peer.until_hung_up_on()


def valid_frames() -> dict[str, bytes]:
    """Requests as they should be, none of which changes anything."""
    partition = FetchPartition(partition=0, fetch_offset=2, partition_max_bytes=1 << 20)
    offsets = ListOffsetsTopic(TOPIC, (ListOffsetsPartition(0, timestamp=LATEST),))
    protocol = JoinGroupRequestProtocol("range", b"\0\1\0\0\0\0\0\0\0\0")
    requests = {
        "api_versions": (ApiVersionsRequest("name", "1.0"), 3),
        "metadata_v1": (MetadataRequest((MetadataRequestTopic(name=TOPIC),)), 1),
        "metadata": (MetadataRequest((MetadataRequestTopic(name=TOPIC),)), 12),
        "fetch": (FetchRequest(topics=(FetchTopic(TOPIC, partitions=(partition,)),)), 11),
        "list_offsets": (ListOffsetsRequest(-1, topics=(offsets,)), 6),
        "find_coordinator": (FindCoordinatorRequest(key="g"), 3),
        "join_group": (
            JoinGroupRequest(
                group_id="g",
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                member_id="",
                protocol_type="consumer",
                protocols=(protocol,),
            ),
            6,
        ),
        "heartbeat": (HeartbeatRequest("g", 1, "m"), 4),
    }
    return {
        name: b"".join(ClientConnection("valid").send(request, version)[1])
        for name, (request, version) in requests.items()
    }


@pytest.mark.parametrize("name", valid_frames())
def test_a_request_that_ends_early_is_no_request(server: Any, name: str) -> None:
    body = valid_frames()[name][4:]
    for size in range(1, len(body)):
        with closing(Peer(server.address)) as peer:
            peer.send(framed(body[:size]))
            assert peer.until_hung_up_on() == b"", size


@pytest.mark.parametrize("name", valid_frames())
def test_a_connection_that_ends_within_a_request(server: Any, name: str) -> None:
    frame = valid_frames()[name]
    for size in range(1, len(frame)):
        with closing(Peer(server.address)) as peer:
            peer.send(frame[:size], is_last=True)
            assert peer.until_hung_up_on() == b"", size


@pytest.mark.parametrize("name", valid_frames())
def test_flipped_bits(server: Any, name: str) -> None:
    frame = valid_frames()[name]
    random = Random(name)
    for _ in range(60):
        mutated = bytearray(frame)
        for _ in range(random.randrange(1, 5)):
            mutated[random.randrange(len(mutated))] ^= 1 << random.randrange(8)
        with closing(Peer(server.address)) as peer:
            peer.send(bytes(mutated), is_last=True)
            peer.until_hung_up_on()


# ---- sizes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [-(2**31), -1, 0, FRAME_BYTES_MAX + 1, 2**31 - 1])
def test_a_size_that_no_frame_has_ends_the_connection_at_once(server: Any, size: int) -> None:
    with closing(Peer(server.address)) as peer:
        peer.send(struct.pack(">i", size))
        assert peer.until_hung_up_on() == b""


def test_a_promise_takes_no_memory(server: Any) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("this system does not tell how much memory a process has")
    before = resident_bytes(server.pid)
    peers = [Peer(server.address) for _ in range(50)]
    for peer in peers:
        peer.send(struct.pack(">i", FRAME_BYTES_MAX) + bytes(1_000))
    with closing(Peer(server.address)) as after_them:
        check(after_them)
    assert resident_bytes(server.pid) - before < FRAME_BYTES_MAX
    for peer in peers:
        peer.close()


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1_024
    raise AssertionError("no VmRSS")


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (1, struct.pack(">i", 2**31 - 1)),
        (1, struct.pack(">ih", 1, 32_767) + b"short"),
        (1, struct.pack(">ih", 1, -2)),
        (9, b"\xff\xff\xff\xff\x0f\0\0\0"),  # four billion topics
        (9, b"\xff" * 10 + b"\0\0\0"),  # a varint without an end
        (9, b"\x02\xff\xff\xff\xff\x07name"),  # a name of two gigabytes
        (9, b"\x02\x81\x80\x02" + b"n" * 32_768 + bytes(5)),  # a name longer than Kafka's
        (1, struct.pack(">ih", 1, 10_923) + b"\xff" * 10_923),  # one that grows to be so
        (9, b"\x00\x01\x00\x00\x01\x00\xff\xff\xff\xff\x0f"),  # a tagged field as large
    ],
)  # fmt: skip
def test_counts_and_lengths_beyond_the_frame(server: Any, version: int, body: bytes) -> None:
    with closing(Peer(server.address)) as peer:
        peer.send(framed(header(ApiKey.METADATA, version, flexible=version >= 9) + body))
        assert peer.until_hung_up_on() == b""


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (1, struct.pack(">i", -2)),  # all topics
        (1, struct.pack(">i", 0) + b"and then some"),
        (9, b"\x02\x05\xff\xfe\xfd\xfc\0\0\0\0\0"),  # a name that is not UTF-8
    ],
)
def test_what_apache_kafka_lets_pass(server: Any, version: int, body: bytes) -> None:
    with closing(Peer(server.address)) as peer:
        peer.send(framed(header(ApiKey.METADATA, version, flexible=version >= 9) + body))
        assert peer.socket.recv(1 << 16)[4:8] == struct.pack(">i", 7)


# ---- keys and versions -------------------------------------------------------------------------


@pytest.mark.parametrize("key", [-1, 93, 1_000, 32_767])
def test_an_api_that_nobody_knows(server: Any, key: int) -> None:
    with closing(Peer(server.address)) as peer:
        peer.send(framed(header(key, 0) + bytes(20)))
        assert peer.until_hung_up_on() == b""


def test_an_api_that_is_not_advertised(server: Any) -> None:
    for key in {key for key in ApiKey if not key.is_private} - set(advertised(server)):
        with closing(Peer(server.address)) as peer:
            peer.send(framed(header(key, 0) + bytes(20)))
            assert peer.until_hung_up_on() == b"", key.name


def test_a_version_that_is_not_advertised(server: Any) -> None:
    for key, (first, last) in advertised(server).items():
        if key is ApiKey.API_VERSIONS:
            continue
        for version in (first - 1, last + 1, 32_767, -32_768):
            with closing(Peer(server.address)) as peer:
                peer.send(framed(header(key, version) + bytes(20)))
                assert peer.until_hung_up_on() == b"", (key.name, version)


@pytest.mark.parametrize("version", [5, 99, 32_767])
def test_a_newer_api_versions_is_answered_in_v0(server: Any, version: int) -> None:
    with closing(Peer(server.address)) as peer:
        peer.send(framed(header(ApiKey.API_VERSIONS, version, flexible=True) + bytes(3)))
        said = peer.socket.recv(1 << 16)
        expected = struct.pack(">ih", 7, ErrorCode.UNSUPPORTED_VERSION)
        expected += struct.pack(">ihhh", 1, ApiKey.API_VERSIONS, 0, 4)
        assert said == framed(expected)
        assert peer.ask(ApiVersionsRequest("test", "1"), 3).error_code is ErrorCode.NONE


@pytest.mark.parametrize("version", [0, 1, 2])
def test_message_sets_of_old_clients_are_refused(server: Any, version: int) -> None:
    with closing(Peer(server.address)) as peer:
        assert produce(peer, BATCH, version=version) is not ErrorCode.NONE


# ---- batches that lie --------------------------------------------------------------------------


def lie(*patches: tuple[int, str, int], batch: bytes = BATCH, right_crc: bool = True) -> bytes:
    """`batch` with other numbers (position, format, value) in its header."""
    lying = bytearray(batch)
    for position, form, value in patches:
        struct.pack_into(form, lying, position, value)
    if right_crc:
        struct.pack_into(">I", lying, 17, crc32c(bytes(lying[21:])))
    return bytes(lying)


def with_records(payload: bytes, count: int = 2, attributes: int = 0) -> bytes:
    """A batch of which all is right but perhaps the bytes of its records."""
    return lie(
        (8, ">i", 49 + len(payload)), (21, ">h", attributes), (57, ">i", count),
        (23, ">i", count - 1), batch=BATCH[:61] + payload,
    )  # fmt: skip


def control_batch() -> bytes:
    return records.encode(Columns([b"\0\0\0\0"], [b"\0\0\0\0\0\0"], [1]), control=True)


BOMB = gzip.compress(bytes(1 << 20)) * 400  # 400 MB in 400 KB, one gzip member behind the other
RECORD = BATCH[61:]
CORRUPT, INVALID = {ErrorCode.CORRUPT_MESSAGE}, {ErrorCode.INVALID_RECORD}
EITHER = CORRUPT | INVALID | {ErrorCode.UNSUPPORTED_COMPRESSION_TYPE}
LIES: dict[str, tuple[bytes | None, set[ErrorCode]]] = {
    "crc": (lie((17, ">I", 1), right_crc=False), CORRUPT),
    "flipped byte": (BATCH[:-1] + bytes([BATCH[-1] ^ 1]), CORRUPT),
    "magic 3": (lie((16, ">b", 3)), CORRUPT),
    "magic -1": (lie((16, ">b", -1)), CORRUPT),
    "magic 1": (lie((16, ">b", 1)), CORRUPT | INVALID),
    "batch length 0": (lie((8, ">i", 0)), CORRUPT),
    "batch length -1": (lie((8, ">i", -1)), CORRUPT),
    "batch length of a header less one": (lie((8, ">i", 48)), CORRUPT | INVALID),
    "batch length beyond the data": (lie((8, ">i", len(BATCH))), INVALID),
    "batch length 2 GB": (lie((8, ">i", 2**31 - 1)), INVALID),
    "base offset": (lie((0, ">q", 7)), INVALID),
    "base offset negative": (lie((0, ">q", -7)), INVALID),
    "last offset delta": (lie((23, ">i", 5)), INVALID),
    "last offset delta negative": (lie((23, ">i", -1)), INVALID),
    "count too large": (lie((57, ">i", 3)), INVALID),
    "count too small": (lie((57, ">i", 1)), INVALID),
    "count 2 billion": (lie((57, ">i", 2**31 - 1)), INVALID),
    "count negative": (lie((57, ">i", -1)), INVALID),
    "count and delta agree on too many": (with_records(RECORD, count=9), INVALID),
    "no records": (with_records(b"", count=0), INVALID),
    "bytes after the last record": (with_records(RECORD + b"\0\0\0"), INVALID),
    "the last record cut": (with_records(RECORD[:-1]), INVALID),
    "overlong varint": (with_records(b"\xff" * 30), EITHER),
    "zeros for records": (with_records(bytes(20)), INVALID),
    "two batches": (BATCH + BATCH, INVALID),
    "a batch and a half": (BATCH + BATCH[:30], INVALID),
    "header cut": (BATCH[:60], CORRUPT | INVALID),
    "one byte": (b"\0", CORRUPT | INVALID),
    "no bytes": (b"", INVALID),
    "null": (None, INVALID),
    "control batch": (control_batch(), INVALID),
    "unknown codec": (with_records(RECORD, attributes=7), EITHER),
    "a bomb": (with_records(BOMB, attributes=1), INVALID),
    **{
        f"garbage as {codec.name.lower()}": (
            with_records(Random(1).randbytes(64), attributes=codec), EITHER,
        )
        for codec in Compression if codec is not Compression.NONE
    },
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_batch_that_lies_is_refused(server: Any, name: str) -> None:
    batch, codes = LIES[name]
    with closing(Peer(server.address)) as peer:
        assert produce(peer, batch) in codes
        assert produce(peer, batch, acks=1) in codes  # over the same connection
        check(peer)


def test_a_batch_that_lies_under_acks_0_ends_its_connection(server: Any) -> None:
    data = TopicProduceData(TOPIC, (PartitionProduceData(0, LIES["crc"][0]),))
    with closing(Peer(server.address)) as peer:
        _, parts = ClientConnection("hostile").send(ProduceRequest(acks=0, topic_data=(data,)), 8)
        peer.send(b"".join(parts))
        assert peer.until_hung_up_on() == b""


@pytest.mark.parametrize(
    ("acks", "topic", "index", "code"),
    [
        (5, TOPIC, 0, ErrorCode.INVALID_REQUIRED_ACKS),
        (-2, TOPIC, 0, ErrorCode.INVALID_REQUIRED_ACKS),
        (-1, "no-such-topic", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (-1, TOPIC, 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (-1, TOPIC, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (-1, "../../etc", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (-1, "", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_a_good_batch_for_a_bad_place(
    server: Any, acks: int, topic: str, index: int, code: ErrorCode
) -> None:
    data = TopicProduceData(topic, (PartitionProduceData(index, BATCH),))
    with closing(Peer(server.address)) as peer:
        request = ProduceRequest(acks=acks, timeout_ms=1_000, topic_data=(data,))
        answer = peer.ask(request, 8)
        assert answer.responses[0].partition_responses[0].error_code is code


@pytest.mark.parametrize(
    ("sequence", "epoch", "code"),
    [
        (0, 3, ErrorCode.NONE),  # a repetition: acknowledged, not stored again
        (7, 3, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (1, 3, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (5, 4, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (2, 2, ErrorCode.INVALID_PRODUCER_EPOCH),
        (0, -1, ErrorCode.INVALID_PRODUCER_EPOCH),
        (-1, 3, ErrorCode.INVALID_RECORD),
        (-2, 3, ErrorCode.INVALID_RECORD),
    ],
)
def test_sequences_that_are_not_due(
    server: Any, sequence: int, epoch: int, code: ErrorCode
) -> None:
    with closing(Peer(server.address)) as peer:
        assert produce(peer, in_sequence(sequence, epoch)) is code


# ---- rude peers --------------------------------------------------------------------------------


def test_a_peer_that_asks_and_never_listens(server: Any, bystander: Peer) -> None:
    """It is not asked for more questions, and costs nobody else anything."""
    question = valid_frames()["metadata"] * 1_000
    with closing(Peer(server.address)) as peer:
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        peer.socket.setblocking(False)
        sent = 0
        while sent < 64 << 20:
            check(bystander)
            try:
                sent += peer.socket.send(question)
            except BlockingIOError:
                break
        assert sent < 64 << 20, "the broker went on reading without being read"


def test_a_peer_that_resets(server: Any) -> None:
    frame = valid_frames()["fetch"]
    for size in (1, 4, 10, len(frame) - 1, len(frame)):
        with closing(Peer(server.address)) as peer:
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.send(frame[:size])


def test_many_who_say_half_a_word(server: Any, bystander: Peer) -> None:
    frame = valid_frames()["metadata"]
    peers = [Peer(server.address) for _ in range(40)]  # fewer than socket.listen.backlog.size
    for peer in peers:
        peer.send(frame[:6])
    check(bystander)
    for peer in peers:
        peer.send(frame[6:])
    assert all(peer.socket.recv(1 << 16) for peer in peers)  # it was a word after all
    for peer in peers:
        peer.close()
