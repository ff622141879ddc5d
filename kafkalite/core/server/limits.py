"""The limits of a server, for each peer and for all of them.                                [P]

Owns   the names, which are those of Kafka's settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kafkalite.core.protocol.connection import FRAME_BYTES_MAX

QUEUED_BYTES_MAX: Final = 10 * FRAME_BYTES_MAX
NEVER: Final = -1


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """One server's limits."""

    socket_request_max_bytes: int = FRAME_BYTES_MAX
    max_connections: int = 2**31 - 1
    max_connections_per_ip: int = 2**31 - 1
    max_connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    connections_max_idle_ms: int = 600_000  # NEVER: no limit
    queued_max_request_bytes: int = QUEUED_BYTES_MAX  # buffers of large requests being received
    socket_send_buffer_bytes: int = -1  # -1: the system's own, which grows with the need
    socket_receive_buffer_bytes: int = -1
    backlog: int = 50
