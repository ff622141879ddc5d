"""A client for those who read without an event loop of their own.                          [IO]

Owns   nothing: the client is the caller's, to be closed in the loop that started it.
Fails  with BrokerUnavailable.
"""

from __future__ import annotations

from kafkalite.clients.cluster import Client
from kafkalite.columnar.settings import ReadSettings


async def connected(settings: ReadSettings) -> Client:
    """A client that has found its cluster."""
    client = Client(
        settings.bootstrap_servers,
        client_id=settings.client_id,
        request_timeout_ms=settings.request_timeout_ms,
        metadata_max_age_ms=settings.metadata_max_age_ms,
    )
    await client.start()
    return client
