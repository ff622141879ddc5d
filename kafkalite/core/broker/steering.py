"""How a broker reaches the controller: in its own process, or in a cluster.                 [P]

    alone        the controller of the one broker that there is
    membership   a cluster: the controller is the broker that holds the seat

Owns   the words between a broker and either of them.
Source apache/kafka `NodeToControllerChannelManager`, `ForwardingManager`.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from kafkalite.core.cluster.controller import ControllerRequest
from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.pending import Pending
from kafkalite.core.protocol.peers import FollowMetadataRequest, FollowMetadataResponse

PEER_CLIENT: Final = "kafkalite-broker-"  # how the client ids of brokers begin
NOBODY: Final = -1  # a peer whose client id has no number


class Steering(Protocol):
    """The controller, as one broker sees it."""

    @property
    def controller_id(self) -> int:
        """The broker that controls the cluster now; -1 while there is none."""

    @property
    def is_start_settled(self) -> bool:
        """Whether the controller has heard what the logs lacked at this start, if they lacked
        anything. If not, the next start has to say so."""

    def start(self) -> None:
        """Begins to take requests."""

    def control(self, request: ControllerRequest, *, from_peer: int | None = None) -> Pending[Any]:
        """Hands a request to the controller, through another broker unless it came `from_peer`,
        a broker. Answered once its records are durable. Those that clients ask for are in force by
        then at all brokers, unless that takes long."""

    def follow(
        self, request: FollowMetadataRequest
    ) -> FollowMetadataResponse | Pending[FollowMetadataResponse]:
        """Metadata for another broker; NOT_CONTROLLER where the controller is elsewhere."""

    def configure(self, config: BrokerConfig) -> None:
        """The broker has other settings."""

    async def leave(self) -> None:
        """The broker is about to stop: others are to lead what it leads."""

    async def close(self) -> None:
        """Takes no more requests."""


def peer_of(client_id: str | None) -> int | None:
    """The broker that a request comes from; None for a client. Brokers do not forward what they get
    from brokers."""
    if client_id is None or not client_id.startswith(PEER_CLIENT):
        return None
    number = client_id.removeprefix(PEER_CLIENT)
    return int(number) if number.isdecimal() else NOBODY
