"""A member's automatic commits, and the committed offsets from which it begins.              [IO]

    maintain ──> a task looks up where the group stands, for partitions without a position
          └──> a task commits what earlier polls have given, every `interval_ms`

Owns   the two tasks, and the offsets of the last automatic commit.
Never  commits records that the user has not been given, or unchanged offsets a second time.
Fails  with ApiError from `maintain`, where the group's offsets are refused; a refused automatic
       commit is worth a warning, and the next one tries again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from kafkalite.clients.consumer.member import GroupMember, OffsetAndMetadata
from kafkalite.clients.consumer.positions import Positions
from kafkalite.core.types import NO_OFFSET, TopicPartition
from kafkalite.errors import BrokerUnavailable, KafkaliteError

log: Final = logging.getLogger(__name__)


class Commits:
    """Those of one member. `interval_ms` is None where the user commits."""

    def __init__(
        self,
        group: GroupMember,
        positions: Positions,
        wake: Callable[[], None],
        interval_ms: int | None,
    ) -> None:
        self._group = group
        self._positions = positions
        self._wake = wake
        self._interval_ms = interval_ms
        self._loop = asyncio.get_running_loop()
        self._looking_up: asyncio.Task[None] | None = None
        self._committing: asyncio.Task[None] | None = None
        self._last: dict[TopicPartition, tuple[int, int]] = {}  # of automatic commits
        self.due_at: float | None = None  # when the next one is, in the loop's time
        self._put_off()

    def _put_off(self) -> None:
        if self._interval_ms is not None:
            self.due_at = self._loop.time() + self._interval_ms / 1000

    def maintain(self) -> None:
        """Looks up what the group has committed, and commits if that is due."""
        if self._looking_up is not None and self._looking_up.done():
            done, self._looking_up = self._looking_up, None
            done.result()
        if self._looking_up is None and (unknown := self._positions.awaiting_committed()):
            self._looking_up = asyncio.create_task(self._look_up(unknown))
        if self._committing is not None and self._committing.done():
            self._committing = None
        is_due = self.due_at is not None and self._loop.time() >= self.due_at
        if is_due and self._committing is None:
            self._put_off()
            self._committing = asyncio.create_task(self._commit())

    async def before_revoke(self) -> None:
        """Commits once more before partitions are revoked, while the member still owns them."""
        if self._interval_ms is None:
            return
        if self._committing is not None:
            await asyncio.gather(self._committing, return_exceptions=True)
            self._committing = None
        await self._commit()

    async def close(self) -> None:
        """Ends both tasks; `before_revoke` may follow."""
        tasks = [task for task in (self._looking_up, self._committing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look_up(self, unknown: Sequence[TopicPartition]) -> None:
        stable = self._positions.settings.read_committed
        try:
            found = await self._group.committed(unknown, stable=stable)
            for tp in unknown:
                entry = found.get(tp, OffsetAndMetadata(NO_OFFSET))
                self._positions.committed(tp, entry.offset, entry.leader_epoch)
        except BrokerUnavailable as error:
            log.warning("%s, asking again", error)
        finally:
            self._wake()

    async def _commit(self) -> None:
        consumed = self._positions.consumed()
        changed = {
            tp: OffsetAndMetadata(*place)
            for tp, place in consumed.items()
            if self._last.get(tp) != place
        }
        try:
            await self._group.commit(changed)
            self._last = consumed
        except KafkaliteError as error:
            log.warning("automatic commit: %s", error)
