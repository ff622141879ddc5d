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


class Steering(Protocol):
    """The controller, as one broker sees it."""

    @property
    def controller_id(self) -> int:
        """The broker that controls the cluster now; -1 while there is none."""

    def start(self) -> None:
        """Begins to take requests."""

    def control(self, request: ControllerRequest, *, may_forward: bool) -> Pending[Any]:
        """Hands a request to the controller, through another broker only if it `may_forward`.
        Answered once its records are durable; here they may be in force a moment later."""

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


def is_peer(client_id: str | None) -> bool:
    """Whether a request comes from another broker. Brokers do not forward what they get so."""
    return client_id is not None and client_id.startswith(PEER_CLIENT)
