"""How a broker of a cluster reaches the other brokers: by their listener for brokers.       [IO]

    channel ──image──> the broker's address ──Peers──> one connection for each broker and lane

Owns   the interface that parts of the broker which ask others have to it.
Source apache/kafka `InterBrokerSendThread`, `BrokerBlockingSender`.
"""

from __future__ import annotations

from typing import Protocol

from kafkalite.core.cluster.image import ClusterImage
from kafkalite.core.peers.channel import PeerChannel, Peers


class Host(Protocol):
    """The broker itself."""

    node_id: int

    @property
    def image(self) -> ClusterImage:
        """The cluster as it is now."""

    @property
    def broker_epoch(self) -> int:
        """The epoch of this broker's registration now."""

    def monotonic_ms(self) -> int:
        """The monotonic clock."""

    def note(self, message: str) -> None:
        """Logs one line for the operator."""


class OtherBrokers:
    """The other brokers of the cluster, reached by the listener of that name."""

    def __init__(self, host: Host, peers: Peers, listener: str) -> None:
        self._host = host
        self._peers = peers
        self._listener = listener

    def channel(self, node_id: int, lane: str) -> PeerChannel | None:
        """The connection to a broker for requests of one kind; None while it is not registered, or
        has no such listener."""
        node = self._host.image.node(node_id, self._listener)
        if node is None:
            return None
        return self._peers.channel(node_id, (node.host, node.port), lane)

    def in_doubt(self) -> set[int]:
        """The registered brokers to which a connection broke a moment ago: they may be dying."""
        return self._peers.in_doubt() & self._host.image.brokers.keys()
