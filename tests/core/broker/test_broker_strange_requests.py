"""Requests that are whole and make no sense: each is answered in its form, or refused in words.

Every API in every version, with numbers from the ends of their ranges, names of what is there, of
what is not and of what cannot be, and whatever ids the answers before have given away.
"""

from __future__ import annotations

import asyncio
from dataclasses import fields, is_dataclass
from random import Random
from typing import Any
from uuid import UUID

import pytest

from kafkalite.core.handlers import ROUTES
from kafkalite.core.handlers.routes import Route
from kafkalite.core.handlers.service import BrokerService
from kafkalite.core.pending import NO_ANSWER, Encoded, Framed, Pending
from kafkalite.core.protocol import codec
from kafkalite.core.protocol import primitives as p
from kafkalite.core.protocol.apis import API
from kafkalite.core.protocol.connection import RequestHeader, RequestReceived, ServerConnection
from kafkalite.core.protocol.fields import Array, Element, Struct, fields_of
from kafkalite.core.protocol.records import encode
from kafkalite.core.types import Columns, PeerIdentity
from kafkalite.errors import KafkaliteError

Start = Any
BITS = {"b": 8, "h": 16, "i": 32, "q": 64, "H": 16}
NUMBERS = [
    0,
    1,
    1,
    2,
    3,
    -1,
    -2,
    5,
    100,
    6_000,
    *(s * (1 << b) for b in (15, 31, 63) for s in (1, -1)),
]
NAMES = [
    "", "t", "u", "g", "1", "-1", "consumer", "range", "tx", "__consumer_offsets", "a\nb", "..",
    "__transaction_state", "x" * 300, "é😀", "retention.ms", "cleanup.policy", "compact", "root",
]  # fmt: skip
GIVEN = {"member_id", "producer_id", "session_id", "generation_id", "topic_id"}
GIVEN_MAX = 20


class Stranger:
    """Makes requests; remembers the last ids that it was given."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.names, self.numbers, self.ids = list(NAMES), list(NUMBERS), [p.ZERO_UUID, UUID(int=5)]

    def request(self, cls: type, version: int) -> Any:
        values = {}
        for field in fields_of(cls):
            if field.is_in(version):
                is_null = field.is_nullable(version) and self.random.random() < 0.15
                values[field.name] = None if is_null else self.value(field.element, version)
        return cls(**values)

    def value(self, element: Element, version: int) -> Any:
        choice = self.random.choice
        match element:
            case Array(inner):
                count = choice((0, 1, 1, 1, 2, 3))
                return tuple(self.value(inner, version) for _ in range(count))
            case Struct(cls):
                return self.request(cls, version)
            case p.UUID:
                return choice(self.ids)
            case p.Fixed("?"):
                return choice((True, False))
            case p.Fixed("d"):
                return choice((0.0, -1.0, 1.5, float("inf"), float("nan")))
            case p.Fixed(letter):
                low = 0 if letter.isupper() else -(1 << BITS[letter] - 1)
                return max(low, min((1 << BITS[letter] - 1) - 1, choice(self.numbers)))
            case p.RECORDS:
                return self.batch()
            case p.STRING:
                return choice(self.names)
        return choice((b"", bytes(10), self.random.randbytes(20)))

    def batch(self) -> bytes:
        choice = self.random.choice
        made = bytearray(
            encode(
                Columns([b"k"], [b"v"], [1_000]),
                producer_id=choice((-1, 0, *self.numbers[len(NUMBERS) :])),
                producer_epoch=choice((-1, 0, 1)),
                base_sequence=choice((-1, 0, 1, 5)),
                transactional=self.random.random() < 0.3,
            )
        )
        if self.random.random() < 0.3:
            made[self.random.randrange(len(made))] ^= 1 << self.random.randrange(8)
        return bytes(made)

    def hear(self, answer: Any, field: str = "") -> None:
        """Keeps what identifies somebody or something."""
        if is_dataclass(answer):
            for each in fields(answer):
                self.hear(getattr(answer, each.name), each.name)
        elif isinstance(answer, tuple):
            for each in answer:
                self.hear(each, field)
        elif field in GIVEN and answer:
            known: list[Any] = {str: self.names, int: self.numbers, UUID: self.ids}[type(answer)]
            if len(known) >= len(NAMES) + GIVEN_MAX:
                del known[-GIVEN_MAX]
            known.append(answer)


@pytest.mark.parametrize("seed", range(3))
def test_every_request_is_answered_or_refused(
    start: Start, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    every = [(r, version) for r in ROUTES.values() for version in range(*r.versions)] + [
        (r, r.versions[1]) for r in ROUTES.values()
    ]
    stranger, connection, heard = Stranger(seed), ServerConnection(), set[Route]()

    def ask(service: BrokerService, route: Route, version: int) -> None:
        header = RequestHeader(route.key, version, 1, "stranger")
        body = codec.encode(stranger.request(route.request, version), version)

        def told(answer: Any) -> None:
            if isinstance(answer, Encoded):
                connection.send(header, answer.data)
                answer = codec.decode(API[route.key].response, answer.data, version)
            if isinstance(answer, KafkaliteError) or answer is NO_ANSWER:
                return
            if isinstance(answer, Framed):  # a usual request, which native code has answered
                heard.add(route)
                return
            connection.send(header, answer)  # can be written in the version that was asked in
            stranger.hear(answer)
            heard.add(route)

        try:
            request = RequestReceived(header, memoryview(bytearray(body)))
            answer = service.answer(request, PeerIdentity("h"))
        except KafkaliteError:
            return
        finally:
            service.settle()
        if isinstance(answer, Pending):
            answer.when_done(told)
        elif answer is not None:
            told(answer)

    async def story() -> None:
        async with start(group_min_session_timeout_ms="1") as running:
            peer, service = await running.connect(), BrokerService(running.broker)
            await peer.create("t", 2)
            for _ in range(3):
                stranger.random.shuffle(every)
                for route, version in every:
                    ask(service, route, version)
                    await asyncio.sleep(0)
            await running.until(lambda: len(heard) == len(ROUTES))
            await peer.create("well")
            assert not (await peer.produce("well", b"v")).error_code

    asyncio.run(story())
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.exc_info]
