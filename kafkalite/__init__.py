"""kafkalite: stream processing in Python on top of its own log.                           [IO]

    import asyncio

    from kafkalite import EmbeddedBroker
    from kafkalite.clients.producer.producer import Producer

    async def greet(address: str) -> None:
        async with Producer(address) as producer:
            await producer.send("greetings", b"hello")

    with EmbeddedBroker("kafkalite-data") as broker:
        asyncio.run(greet(broker.bootstrap_servers))

What else is public is in its rooms: `kafkalite.clients`, `kafkalite.serde`, `kafkalite.streams`,
`kafkalite.spark`, and what all of them fail with in `kafkalite.errors`.

Never  imports anything before it is asked for: a topology on Spark pays for no broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafkalite.embedded import EmbeddedBroker
    from kafkalite.embedded_cluster import EmbeddedCluster

__all__ = ["EmbeddedBroker", "EmbeddedCluster"]


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first used."""
    if name == "EmbeddedBroker":
        from kafkalite.embedded import EmbeddedBroker

        return EmbeddedBroker
    if name == "EmbeddedCluster":
        from kafkalite.embedded_cluster import EmbeddedCluster

        return EmbeddedCluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
