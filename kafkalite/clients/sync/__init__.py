"""The clients of `kafkalite.clients` for programs without asyncio: same names, blocking.    [IO]

    from kafkalite.clients.sync import Producer

    with Producer("127.0.0.1:9092") as producer:
        producer.send("orders", b"shipped", key=b"7")

Each class is a twin of an asynchronous one and has its methods, with the same parameters. They
raise the same errors, and may be called from several threads at once.
"""

from __future__ import annotations

from kafkalite.clients.sync.admin import Admin
from kafkalite.clients.sync.consumer import Consumer
from kafkalite.clients.sync.producer import Producer, TransactionalProducer

__all__ = ["Admin", "Consumer", "Producer", "TransactionalProducer"]
