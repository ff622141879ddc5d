"""A worker's commits: what tasks have made goes into the log, with the offsets it came from. [IO]

    take     what the tasks have to commit; outputs are handed in
    write    the committer commits it, then state on disk follows

Tasks may have a round while the commit is written. What it makes waits in the tasks for the next
commit, and is sent behind this one. Offsets are read before the round begins: they cover what was
taken, and no more.

Owns   what is committed of the tasks that run.
Never  polls while a commit is under way. Polls that lead to another commit may come behind it,
       even if a user function holds the round.
Fails  as the committer does, else as the round: a commit that is under way ends before that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from kafkalite.clients.consumer.consumer import OffsetAndMetadata
from kafkalite.core.types import TopicPartition
from kafkalite.streams.local.committer import Changes, Committer, Offsets
from kafkalite.streams.local.polling import Polling
from kafkalite.streams.local.rounds import Rounds
from kafkalite.streams.local.task import Output, TaskCommit
from kafkalite.streams.local.task_manager import Life


class Made(NamedTuple):
    """What tasks have to commit."""

    commits: Sequence[tuple[Life, TaskCommit]]
    changes: Changes
    offsets: Offsets


class Done(NamedTuple):
    """Whether there was something to commit, and how many records a round beside it processed."""

    wrote: bool
    worked: int = 0


class Commits:
    """The commits of one worker."""

    def __init__(
        self,
        rounds: Rounds,
        polling: Polling,
        send: Callable[[Iterable[Output]], Awaitable[None]],
        moved: Callable[[Offsets], None],
    ) -> None:
        self._rounds = rounds
        self._polling = polling
        self._send = send
        self._moved = moved  # hears of offsets that were committed
        self._committed: dict[TopicPartition, OffsetAndMetadata] = {}

    def begin(self, committer: Committer) -> None:
        """A new membership."""
        self._committer = committer
        self._committed = {}

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """The tasks of these inputs run here no more."""
        for tp in partitions:
            self._committed.pop(tp, None)

    async def commit(self, lives: Collection[Life], *, goes_on: bool) -> Done:
        """Commits what these tasks have made. With `goes_on` all have a round meanwhile."""
        with self._polling.held():
            made = await self._take(lives)
        if not goes_on:
            return Done(await self._write(made))
        return await self._write_beside_a_round(made)

    async def _take(self, lives: Collection[Life]) -> Made:
        commits = await self._rounds.commit(lives)
        for _, commit in commits:
            await self._send(commit.outputs)
        changes = [
            (life.task_id.partition, output) for life, each in commits for output in each.changelog
        ]
        offsets = dict(
            entry for life, each in commits for entry in self._rounds.offsets(life, each)
        )
        return Made(commits, changes, offsets)

    async def _write(self, made: Made) -> bool:
        with self._polling.held():
            moved = {tp: at for tp, at in made.offsets.items() if self._committed.get(tp) != at}
            wrote = await self._committer.commit(made.changes, made.offsets, moved)
        self._committed |= moved
        self._moved(moved)
        # The call stands in the task thread's queue before any poll may lead to another commit.
        await self._rounds.checkpoint(made.commits, self._committer.end_offset)
        return wrote

    async def _write_beside_a_round(self, made: Made) -> Done:
        writing = asyncio.ensure_future(self._write(made))
        worked = 0
        try:
            await asyncio.sleep(0)  # requests leave before the loop waits for a call
            worked = await self._rounds.work()
        except asyncio.CancelledError:
            writing.cancel()
            raise
        finally:
            wrote = await writing
        await self._rounds.send_made(list(self._rounds.tasks))
        return Done(wrote, worked)
