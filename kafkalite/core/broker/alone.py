"""The controller of a broker that stands alone: in its process, at once.                    [IO]

Owns   the controller's machine and its queue.
Fails  as the queue does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kafkalite.core.cluster.controller import Controller, ControllerRequest
from kafkalite.core.cluster.image import ClusterRecord
from kafkalite.core.cluster.queue import ControllerQueue
from kafkalite.core.cluster.store import ClusterStore
from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.pending import Pending
from kafkalite.core.protocol.peers import (
    ControlledShutdownRequest,
    FollowMetadataRequest,
    FollowMetadataResponse,
)
from kafkalite.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from kafkalite.core.broker.broker import Broker


class Alone:
    """The `Steering` of `broker`, whose image is the controller's."""

    def __init__(self, broker: Broker, store: ClusterStore) -> None:
        self._broker = broker
        self._controller = broker.new_controller(broker.image)
        self._queue = ControllerQueue(self._controller, store, self.apply)

    @property
    def controller_id(self) -> int:
        """The broker itself."""
        return self._broker.node_id

    @property
    def is_start_settled(self) -> bool:
        """Nobody else has what the logs may lack."""
        return True

    def start(self) -> None:
        """Begins to take requests."""
        self._broker.partitions.remove_strays()
        self._queue.start()

    def control(self, request: ControllerRequest, *, from_peer: int | None = None) -> Pending[Any]:
        """Hands a request to the controller; answered once its records are in force. Nobody says
        goodbye to a broker that stands alone."""
        if isinstance(request, ControlledShutdownRequest):
            words = "there is no other broker to lead in the place of this one"
            refused: Pending[Any] = Pending()
            refusal = ApiError(ErrorCode.INVALID_REQUEST, words)
            refused.complete(Controller.refuse(request, refusal))
            return refused
        return self._queue.submit(request)

    def follow(self, request: FollowMetadataRequest) -> FollowMetadataResponse:
        """There is nobody to follow: this is no cluster."""
        return FollowMetadataResponse(error_code=ErrorCode.NOT_CONTROLLER)

    def configure(self, config: BrokerConfig) -> None:
        """The broker has other settings."""
        self._controller.config = config

    async def apply(self, records: Sequence[ClusterRecord]) -> None:
        """Puts durable records in force."""
        self._controller.replay(records)
        await self._broker.put_in_force(self._controller.image)

    async def leave(self) -> None:
        """Nobody else can lead."""

    async def close(self) -> None:
        """Takes no more requests, and ends the step that has begun."""
        await self._queue.close()
