"""The blocking producers.                                                                  [IO]

Owns   nothing: they are the twins of `kafkalite.clients.Producer` and `TransactionalProducer`.
Fails  as those do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from kafkalite.clients.producer import producer as asynchronous
from kafkalite.clients.producer import transactional
from kafkalite.clients.producer.producer import RecordMetadata
from kafkalite.clients.sync.twin import Twin, blocking, closing, immediate, like, made_like

P_co = TypeVar("P_co", bound=asynchronous.Producer, covariant=True)


class _Producing(Twin[P_co]):
    """The methods that both producers share."""

    close = closing(asynchronous.Producer.close)
    send_columns = blocking(asynchronous.Producer.send_columns)
    flush = blocking(asynchronous.Producer.flush)
    end_offset = immediate(asynchronous.Producer.end_offset)

    @like(asynchronous.Producer.send)
    def send(self, *args: Any, **kwargs: Any) -> Future[RecordMetadata]:
        """Hands in one record; the future gets its place in the log.

        Waits only for room in the buffer, and for the topic's metadata the first time.
        """

        async def work() -> Future[RecordMetadata]:
            return _for_other_threads(await self._client.send(*args, **kwargs))

        return self._thread.run(work)

    @property
    def buffered_bytes(self) -> int:
        """How many bytes are not acknowledged yet."""
        return self.read(_buffered_bytes)


def _buffered_bytes(producer: asynchronous.Producer) -> int:
    return producer.buffered_bytes


def _for_other_threads(stored: asyncio.Future[RecordMetadata]) -> Future[RecordMetadata]:
    """A future for other threads, with the result or error of `stored`."""
    result: Future[RecordMetadata] = Future()
    result.set_running_or_notify_cancel()  # a record that was sent cannot be taken back

    def copy(_: asyncio.Future[RecordMetadata]) -> None:
        if stored.cancelled():
            result.set_exception(asyncio.CancelledError())
        elif (error := stored.exception()) is not None:
            result.set_exception(error)
        else:
            result.set_result(stored.result())

    stored.add_done_callback(copy)
    return result


class Producer(_Producing[asynchronous.Producer]):
    """Sends records to topics. Use it as a context manager; leaving it flushes.

    Its parameters are those of `kafkalite.clients.Producer`. Each `send` waits for the event loop's
    thread; `send_columns` does so once for many records.

        from kafkalite.clients.sync import Producer

        with Producer("127.0.0.1:9092") as producer:
            stored = producer.send("orders", b"shipped", key=b"7")
            print(stored.result().offset)
    """

    @made_like(asynchronous.Producer)
    def __init__(self) -> None: ...


class TransactionalProducer(_Producing[transactional.TransactionalProducer]):
    """Sends records in transactions. Use it as a context manager.

    Its parameters are those of `kafkalite.clients.TransactionalProducer`.

        from kafkalite.clients.sync import TransactionalProducer

        with TransactionalProducer("127.0.0.1:9092", "billing-1") as producer:
            with producer.transaction():
                producer.send("invoices", b"12.50", key=b"7")
                producer.send("orders", b"billed", key=b"7")
    """

    @made_like(transactional.TransactionalProducer)
    def __init__(self) -> None: ...

    begin = immediate(transactional.TransactionalProducer.begin)
    commit = blocking(transactional.TransactionalProducer.commit)
    abort = blocking(transactional.TransactionalProducer.abort)
    abort_unfinished = blocking(transactional.TransactionalProducer.abort_unfinished)
    begin_block = blocking(transactional.TransactionalProducer.begin_block)
    commit_block = blocking(transactional.TransactionalProducer.commit_block)
    send_offsets = blocking(transactional.TransactionalProducer.send_offsets)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction that is committed at the end of the block, aborted if that raises."""
        self.begin_block()
        try:
            yield
            self.commit_block()
        except BaseException:
            self.abort_unfinished()  # the first error is the one to raise
            raise
