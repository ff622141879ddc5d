"""Both ends of a connection without the connection: bytes in, requests or responses out.  [P]

Owns   the cutting of a byte stream into frames, the headers, and on the client's side the order in
       which answers are due.
Never  touches a socket; whoever does calls `get_buffer` and `buffer_updated` as
       asyncio.BufferedProtocol has it, then `next_event` until that returns None. Never bounds how
       many requests are in flight, which is for the caller to do.
Fails  with WireError on what is no frame, no header, or not the answer that is due. Then the
       stream has no meaning any more, and the caller closes the connection.

    frame     Int32 size | header | message
    request   Int16 api_key, Int16 api_version, Int32 correlation_id, String | None client_id
              (with an old-style length in every version), from header v2 on tagged fields
    response  Int32 correlation_id, from header v1 on tagged fields

Frames are memoryviews into the buffers that the socket wrote to, without a copy, and writable. A
buffer is never written to twice: small frames lie one after the other in a chunk, which is left to
its frames when it is full; a large frame has a buffer of its own. Memory is taken for what has
arrived, not for what a size promises: the system makes the pages of a very large buffer when they
are written to, and the buffer is handed out step by step. Chunks begin small, so that a connection
which says little costs little, and so that of a large frame little is copied; each one that fills
up is followed by a larger one.

Source RequestHeader.json, ResponseHeader.json; KIP-511 (answers to an unknown ApiVersions).
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Any, Final, NamedTuple, cast

from kafkalite.core.protocol import codec
from kafkalite.core.protocol.apis import (
    API,
    REQUEST_BYTES_SMALL,
    ApiKey,
    key_of,
    request_bytes_max,
    request_header_version,
    response_header_version,
)
from kafkalite.core.protocol.codec import Request
from kafkalite.core.protocol.memory import unwritten
from kafkalite.core.protocol.primitives import REPLACE, Buffer, SizedRecords, skip_tagged_fields
from kafkalite.core.protocol.produce import ProduceRequest
from kafkalite.errors import ErrorCode, WireError

CHUNK_BYTES_MIN: Final = 4_096
CHUNK_BYTES: Final = 65_536
SMALL_FRAME_BYTES: Final = CHUNK_BYTES // 4  # larger ones get a buffer of their own
FIRST_BYTES_MAX: Final = 1 << 20  # of a large frame's buffer, before any of it has arrived
ANSWER_FIRST_BYTES_MAX: Final = 1 << 22  # the same of an answer: fetches are just over 1 MiB
GROWTH: Final = 4  # of chunks
STEP_BYTES: Final = 1 << 22  # of a large frame's memory, after the first
FRAME_BYTES_MAX: Final = 104_857_600  # Kafka's socket.request.max.bytes
HEADER_TAGS_MAX: Final = 100  # no version of Kafka has any so far
CORRELATION_IDS: Final = 1 << 31

SIZE: Final = struct.Struct(">i")  # and correlation ids
SHORT: Final = struct.Struct(">h")
REQUEST: Final = struct.Struct(">hhi")
FLEXIBLE_SINCE: Final = {int(api.key): (api.key, api.flexible_since) for api in API.values()}

Parts = list[bytes | SizedRecords]


class RequestHeader(NamedTuple):
    """The header of a request: client, API and version, which may be unknown to us."""

    api_key: ApiKey
    api_version: int
    correlation_id: int
    client_id: str | None


class RequestReceived(NamedTuple):
    """A request; the caller checks the version before it decodes `body`."""

    header: RequestHeader
    body: memoryview


class UnknownApi(NamedTuple):
    """A request of an API that is not in the table; its header cannot be read to the end."""

    api_key: int
    api_version: int
    correlation_id: int


class ResponseReceived(NamedTuple):
    """The answer to the oldest request in flight."""

    correlation_id: int
    message: Any


class FrameReceiver:
    """Cuts the received bytes into frames.

    Small frames are received into a chunk, one after the other. A large one that does not fit into
    the rest of the chunk is received into a buffer of its own, to which nothing else is written.
    """

    def __init__(self, frame_bytes_max: int, first_bytes_max: int = FIRST_BYTES_MAX) -> None:
        assert frame_bytes_max > 0
        self._frame_bytes_max = frame_bytes_max
        self._first_bytes_max = first_bytes_max
        self._chunk_bytes = CHUNK_BYTES_MIN  # of the next chunk
        self._view = memoryview(b"")  # the chunk, or a large frame's own buffer
        self._start = 0  # of what was not handed out
        self._end = 0  # of what has arrived
        self.large_bytes = 0  # size of the large frame that is being received, or 0
        self.may_have_frames = False  # something has arrived that was not handed out
        self._large_has_room = False  # it has its own buffer
        self._allowed = 0  # up to where the buffer may be filled
        self._large: memoryview | None = None  # a large frame that has arrived

    @property
    def large_room_bytes(self) -> int:
        """The size of the buffer that `get_buffer` will have for the large frame that is being
        received, 0 if there is none: memory that will be taken if more is received."""
        size = self.large_bytes
        if not size:
            return 0
        if not self._large_has_room:
            return max(self._end - self._start - 4, min(size, self._first_bytes_max))
        if self._end == self._allowed:
            return min(size, self._allowed + STEP_BYTES)
        return self._allowed

    @property
    def large_arrived_bytes(self) -> int:
        """How much has arrived of the large frame that is being received."""
        return self._end - self._start if self.large_bytes else 0

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        """The buffer for the next bytes, at least one; `buffer_updated` gets their number."""
        if self.large_bytes:
            if not self._large_has_room:
                self._make_room_for_large()
            elif self._end == self._allowed:
                self._allowed = self.large_room_bytes
            return self._view[self._end : self._allowed]
        if self._end == len(self._view):
            self._new_chunk(1)
        return self._view[self._end :]

    def buffer_updated(self, byte_count: int) -> None:
        """`byte_count` bytes were written to the buffer that `get_buffer` returned."""
        self._end += byte_count
        self.may_have_frames = True
        if self._large_has_room and self._end == self.large_bytes:
            self._large = self._view
            self._view = memoryview(b"")
            self._start = self._end = self.large_bytes = 0
            self._large_has_room = False

    def receive_data(self, data: Buffer) -> None:
        """Takes bytes that are already somewhere else, by copying them."""
        rest = memoryview(data)
        while rest:
            room = self.get_buffer()
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            self.buffer_updated(count)
            rest = rest[count:]

    def next_frame(self) -> memoryview | None:
        """The next whole frame without its size, or None until more has arrived."""
        if self._large is not None:
            frame, self._large = self._large, None
            self.may_have_frames = False
            return frame
        body = self._start + 4
        if body > self._end or self.large_bytes:
            return None
        size: int = SIZE.unpack_from(self._view, self._start)[0]
        if not 0 < size <= self._frame_bytes_max:
            begins = bytes(self._view[self._start : body])
            raise WireError(
                f"a frame of {size} bytes ({begins!r}); 1 to {self._frame_bytes_max} are allowed"
            )
        after = body + size
        if after <= self._end:
            self._start = after
            self.may_have_frames = after < self._end
            return self._view[body:after]
        if after > len(self._view):
            if size <= SMALL_FRAME_BYTES:
                self._new_chunk(4 + size)
            elif self._may_be_large(size, body):
                self.large_bytes = size
        return None

    def _may_be_large(self, size: int, body: int) -> bool:
        """Whether the large frame that begins at `body` may be received; WireError if it is too
        large. False: more of it must arrive to know."""
        return True

    def drop(self) -> None:
        """Forgets what has arrived: nothing more will, and its memory is wanted elsewhere."""
        self._view, self._large = memoryview(b""), None
        self._start = self._end = self.large_bytes = 0
        self._large_has_room = self.may_have_frames = False

    def _new_chunk(self, room: int) -> None:
        """Leaves the chunk to its frames; what was not handed out moves to a new one, which has
        `room` bytes or more."""
        if self._end and self._end == len(self._view):  # more comes than it is made for
            self._chunk_bytes = min(CHUNK_BYTES, GROWTH * self._chunk_bytes)
        waiting = self._end - self._start
        chunk = memoryview(bytearray(max(self._chunk_bytes, 2 * waiting, room)))
        chunk[:waiting] = self._view[self._start : self._end]
        self._view, self._start, self._end = chunk, 0, waiting

    def _make_room_for_large(self) -> None:
        """Gives a large frame a buffer of its own, with what has arrived of it."""
        arrived, size = self._view[self._start + 4 : self._end], self.large_bytes
        self._allowed = self.large_room_bytes
        own = memoryview(unwritten(size))  # a frame is handed out when all of it is written
        own[: len(arrived)] = arrived
        self._view, self._start, self._end = own, 0, len(arrived)
        self._large_has_room = True
        # Of the next ones several fit a chunk, or as little as possible should land in one.
        self._chunk_bytes = CHUNK_BYTES if size < CHUNK_BYTES else CHUNK_BYTES_MIN


class ServerConnection(FrameReceiver):
    """The broker's end: requests come in, answers go out."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        super().__init__(frame_bytes_max)
        self._client_id_bytes = b""  # the last request's, as nearly all requests repeat it
        self._client_id = ""

    def next_event(self) -> RequestReceived | UnknownApi | None:
        """The next request, or None until more has arrived."""
        frame = self.next_frame()
        if frame is None:
            return None
        if len(frame) < REQUEST.size:
            raise WireError(f"a request of {len(frame)} bytes, too few for its header")
        api_key, api_version, correlation_id = REQUEST.unpack_from(frame)
        known = FLEXIBLE_SINCE.get(api_key)
        if known is None:
            return UnknownApi(api_key, api_version, correlation_id)
        key, flexible_since = known
        client_id, position = self._read_client_id(frame)
        if api_version >= flexible_since:
            position = _skip_tags(frame, position)
        if position > len(frame):
            raise WireError(f"{key.name} request: its header runs past its {len(frame)} bytes")
        header = RequestHeader(key, api_version, correlation_id, client_id)
        return RequestReceived(header, frame[position:])

    def _may_be_large(self, size: int, body: int) -> bool:
        """Few APIs have large requests; an unknown one is refused as soon as it is named."""
        if self._end - body < SHORT.size:
            return False
        known = FLEXIBLE_SINCE.get(SHORT.unpack_from(self._view, body)[0])
        allowed = request_bytes_max(known[0]) if known else REQUEST_BYTES_SMALL
        if size > allowed:
            name = known[0].name if known else "unknown"
            raise WireError(f"a request of {size} bytes ({name}); {allowed} are allowed")
        return True

    def send(self, header: RequestHeader, response: object) -> tuple[Parts, int]:
        """The frame that answers a request, in pieces, and its size in all.

        `response` is a message, or one that was encoded in the request's version: its bytes, or
        its parts.
        """
        key, version = header.api_key, header.api_version
        parts: Parts
        if isinstance(response, list):
            parts = response
        elif isinstance(response, bytes):
            parts = [response]
        else:
            parts = codec.encode_parts(response, version)
        tags = b"\0" if response_header_version(key, version) == 1 else b""
        return _framed(SIZE.pack(header.correlation_id) + tags, parts)

    def _read_client_id(self, frame: memoryview) -> tuple[str | None, int]:
        """The client's id and the position after it, which may lie behind the frame's end."""
        start = REQUEST.size + SHORT.size
        if start > len(frame):
            return None, start
        size = SHORT.unpack_from(frame, REQUEST.size)[0]
        if size < 0:
            return None, start
        raw = bytes(frame[start : start + size])
        if raw != self._client_id_bytes:
            self._client_id_bytes = raw
            self._client_id = raw.decode(errors=REPLACE)
        return self._client_id, start + size


class ClientConnection(FrameReceiver):
    """The client's end: requests go out, answers come in, in the same order."""

    def __init__(self, client_id: str | None, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        super().__init__(frame_bytes_max, ANSWER_FIRST_BYTES_MAX)
        raw = b"" if client_id is None else client_id.encode()
        self._client_id = SHORT.pack(-1 if client_id is None else len(raw)) + raw
        self._next_correlation_id = 0
        # Correlation id, key, version, and whether the caller reads the answer's body.
        self._in_flight: deque[tuple[int, ApiKey, int, bool]] = deque()

    @property
    def in_flight(self) -> int:
        """How many answers are due."""
        return len(self._in_flight)

    def send(self, request: Request[Any], version: int) -> tuple[int, Parts]:
        """The request's correlation id, and its frame in pieces.

        A Produce request with acks=0 is never answered; any other is in flight from now on.
        """
        key = key_of(request)
        correlation_id = self._next_correlation_id
        header = REQUEST.pack(key, version, correlation_id) + self._client_id
        if request_header_version(key, version) == 2:
            header += b"\0"
        parts = codec.encode_parts(request, version)
        self._next_correlation_id = (correlation_id + 1) % CORRELATION_IDS
        if not (isinstance(request, ProduceRequest) and request.acks == 0):
            self._in_flight.append((correlation_id, key, version, False))
        return correlation_id, _framed(header, parts)[0]

    def send_body(self, key: ApiKey, version: int, body: bytes) -> tuple[int, bytes]:
        """The same of a request whose body is written, and whose answer's body the caller reads:
        it comes as the message."""
        correlation_id = self._next_correlation_id
        header = REQUEST.pack(key, version, correlation_id) + self._client_id
        if request_header_version(key, version) == 2:
            header += b"\0"
        self._next_correlation_id = (correlation_id + 1) % CORRELATION_IDS
        self._in_flight.append((correlation_id, key, version, True))
        return correlation_id, b"".join((SIZE.pack(len(header) + len(body)), header, body))

    def next_event(self) -> ResponseReceived | None:
        """The next answer, read in the version that was asked in; or None until more has come."""
        frame = self.next_frame()
        if frame is None:
            return None
        if len(frame) < SIZE.size:
            raise WireError(f"a response of {len(frame)} bytes, too few for its header")
        correlation_id = SIZE.unpack_from(frame)[0]
        if not self._in_flight:
            raise WireError(f"response {correlation_id} answers no request")
        expected, key, version, is_raw = self._in_flight[0]
        if correlation_id != expected:
            raise WireError(f"response {correlation_id}, expected {expected} ({key.name})")
        self._in_flight.popleft()
        position = SIZE.size
        if response_header_version(key, version) == 1:
            position = _skip_tags(frame, position)
        body = frame[position:]  # none is left where the header runs past the end
        if is_raw:
            return ResponseReceived(correlation_id, body)
        if key is ApiKey.API_VERSIONS and _is_unsupported_version(body):
            version = 0
        return ResponseReceived(correlation_id, codec.decode(API[key].response, body, version))


def _skip_tags(frame: memoryview, position: int) -> int:
    """The position after a header's tagged fields; behind the frame's end if they run past it."""
    if position < len(frame) and not frame[position]:
        return position + 1  # there are none, as ever so far
    try:
        return skip_tagged_fields(frame, position, HEADER_TAGS_MAX)[0]
    except IndexError:
        return len(frame) + 1


def _framed(header: bytes, parts: Parts) -> tuple[Parts, int]:
    """`parts` behind their size and header, in one piece with the first of them; and the size."""
    size = len(header)
    for part in parts:
        size += len(part) if type(part) is bytes else cast(SizedRecords, part).size_bytes
    first = parts[0]
    assert isinstance(first, bytes)  # a message begins with bytes of its own
    parts[0] = SIZE.pack(size) + header + first
    return parts, SIZE.size + size


def _is_unsupported_version(body: memoryview) -> bool:
    """A broker that does not know our version of ApiVersions answers in v0 (KIP-511)."""
    return len(body) >= 2 and SHORT.unpack_from(body)[0] == ErrorCode.UNSUPPORTED_VERSION
