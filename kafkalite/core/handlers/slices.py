"""Answers that take long to make: in slices, so that other requests come in between.         [P]

    handler ── generator ──> first slice ── all done ──> the response, at once
                                └─────── more to do ──> Pending, one slice in a turn of the loop

A handler whose work grows with its request is a generator that yields after each slice, or a future
that it waits for, and returns the response. A large response is encoded in a thread, which counts
its errors, too.

Owns   nothing. Each slice finds the broker as it is then.
Fails  by ending the connection with the generator's error, as where a handler raises it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kafkalite.core.broker.metrics import errors_in
from kafkalite.core.pending import NO_ANSWER, Encoded, Pending
from kafkalite.core.protocol import codec
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.types import RequestContext

if TYPE_CHECKING:
    from kafkalite.core.broker.broker import Broker

ENTRIES_PER_SLICE: Final = 100  # of a request or an answer, each of which takes 10 to 50 us

Answering = Generator[Any, None, Any]  # yields None or a future; returns the response
Encode = Callable[[Any], Encoded]


class Answered:
    """Lets a generator wait for a `Pending` as for a future: `yield Answered(pending)`."""

    def __init__(self, pending: Pending[Any]) -> None:
        self._pending = pending

    def add_done_callback(self, call: Callable[[Any], None]) -> None:
        """Calls `call` once the answer is there."""
        self._pending.when_done(call)


def in_slices(
    broker: Broker,
    key: ApiKey,
    context: RequestContext,
    slices: Answering,
    *,
    keeps_peer: bool = False,
    is_large: bool = True,
) -> Any:
    """The result of `slices`: the response, None for no answer, or a `Pending` one.

    With `keeps_peer` the work goes on to its end, else only while the peer is there. A response
    that `is_large` is encoded in a thread, but for those with files in them.
    """
    try:
        waits_for = next(slices)
    except StopIteration as stop:
        return stop.value
    pending: Pending[Any] = Pending(keeps_peer=keeps_peer)
    encode = None
    if is_large and key is not ApiKey.FETCH:
        encode = partial(_encoded, version=context.api_version)
    work = _work(broker, slices, waits_for, encode, pending)
    if not keeps_peer:
        pending.when_abandoned(slices.close)
    broker.run_slices(work, key.name)
    return pending


def _encoded(response: Any, version: int) -> Encoded:
    return Encoded(response, codec.encode(response, version), errors_in(response))


def _work(
    broker: Broker, slices: Answering, waits_for: Any, encode: Encode | None, pending: Pending[Any]
) -> Answering:
    """Completes `pending` with what the other slices return."""
    try:
        yield waits_for
        response = yield from slices
        if isinstance(response, Pending):
            pending.when_abandoned(response.abandon)
            response.when_done(lambda answer: _finish(broker, answer, encode, pending))
        else:
            _finish(broker, response, encode, pending)
    except Exception as error:
        pending.fail(error)


def _finish(broker: Broker, response: Any, encode: Encode | None, pending: Pending[Any]) -> None:
    """Encodes the response in a thread: it is as large as its request."""
    is_message = response is not NO_ANSWER and not isinstance(response, Encoded | Exception)
    if response is None:
        pending.complete(NO_ANSWER)
    elif encode is None or not is_message:
        pending.complete(response)
    elif not pending.is_abandoned:
        broker.run_slices(_encode_aside(broker, partial(encode, response), pending), "an answer")


def _encode_aside(
    broker: Broker, encode: Callable[[], Encoded], pending: Pending[Any]
) -> Answering:
    encoding = broker.compute(encode)
    yield encoding
    try:
        pending.complete(encoding.result())
    except Exception as error:
        pending.fail(error)
