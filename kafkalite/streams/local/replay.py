"""Replaying a changelog into a store: from where, and when it is over.                    [P]

    checkpoint of the store                          the replay begins
    none                                             at the first offset
    between the changelog's first and end offset     there: only the tail is read
    before the first offset, behind the end,         at the first offset; the rows are thrown
    of another format or another changelog,          away, which is logged
    older than deletions stay in the changelog

A changelog with the same name and another topic id was deleted and created again. Its rows are
lost, and only the user can decide to continue without them, so the worker refuses it.

Owns   the decision, and which rows go to which store.
Never  waits for a certain offset: compaction leaves gaps and transactions leave markers, so a
       replay is over when the reader's position has reached the end.
Fails  with TopologyError for a changelog that was made anew.
Source Kafka Streams' ProcessorStateManager, StoreChangelogReader.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import TopologyError
from kafkalite.streams.local.state.kept import Kept

DELETIONS_STAY_MS: Final = 24 * 3_600_000  # delete.retention.ms, as changelogs have it
SEPARATOR: Final = "/"


class Restorable(Protocol):
    """A task, as far as a replay goes."""

    def restore(self, store: str, batch: Columns) -> None:
        """Takes a batch of a store's changelog over."""

    def kept(self, name: str) -> Kept:
        """The rows of a store as bytes."""


@dataclass(slots=True, eq=False)
class Replay:
    """One changelog partition on its way into one store of `task`."""

    task: Restorable
    store: str
    changelog: TopicPartition
    start: int
    end: int
    thrown_away: str | None = None  # why the rows on disk were of no use
    _is_read: bool = field(default=False, init=False)  # to its end

    @classmethod
    def begin(
        cls,
        task: Restorable,
        store: str,
        changelog: TopicPartition,
        *,
        topic_id: object,
        beginning: int,
        end: int,
        now_ms: int,
    ) -> Replay:
        """Decides where to begin. `topic_id` is None where the broker has none."""
        kept = task.kept(store)
        identity = f"{topic_id}{SEPARATOR}{changelog}"
        reason = _why_useless(kept, changelog, identity, beginning, end, now_ms)
        if reason is not None:
            kept.clear()
        start = beginning if kept.offset is None else kept.offset
        kept.identify(identity.encode())
        return cls(task, store, changelog, start, end, reason)

    def take(self, columns: Columns) -> None:
        """Takes over what was read."""
        self.task.restore(self.store, columns)

    def reached(self, position: int, now_ms: int) -> bool:
        """Notes how far the reader has come, and writes some of the rows that are to be written;
        whether the replay is over."""
        kept = self.task.kept(self.store)
        if not (self._is_read or kept.is_writing):
            self._is_read = position >= self.end
            kept.loaded_to(position, now_ms, is_end=self._is_read)
        return not kept.write_on() and self._is_read

    @property
    def is_writing(self) -> bool:
        """Whether rows are on their way into the store. Nothing may be taken meanwhile."""
        return self.task.kept(self.store).is_writing

    def write_on(self) -> bool:
        """Writes some of them; whether there are more."""
        return self.task.kept(self.store).write_on()

    def settle(self) -> None:
        """Writes the rest of them."""
        while self.write_on():
            pass

    def passed(self, position: int, now_ms: int, *, writes: bool) -> None:
        """Notes how far the reader of a replay without end has come. With `writes` the rows are
        written by `write_on`, so that a replay that begins later begins there."""
        self.start = position
        self.task.kept(self.store).loaded_to(position, now_ms, is_end=writes)

    def start_over(self, beginning: int) -> None:
        """What was to be read next is deleted: so are, perhaps, rows that were read already."""
        kept = self.task.kept(self.store)
        identity = kept.identity
        kept.clear()
        kept.identify(identity or b"")
        self.start, self._is_read = beginning, False


def _why_useless(
    kept: Kept, changelog: TopicPartition, identity: str, beginning: int, end: int, now_ms: int
) -> str | None:
    """Why the rows that are there cannot be the beginning of the changelog; None: they can."""
    offset, known = kept.offset, (kept.identity or b"").decode(errors="replace")
    if not kept.is_of_this_format:
        return "another version of kafkalite wrote it"
    if offset is None:
        return None if kept.is_empty else "it was never finished"
    if known != identity:
        known_id, _, known_changelog = known.partition(SEPARATOR)
        if known_changelog == str(changelog):
            raise TopologyError(
                f"the changelog {changelog.topic!r} was deleted and created again (its topic id is "
                f"{identity.partition(SEPARATOR)[0]}, the state in {kept} is of {known_id}): the "
                "rows that it had are lost. Remove that directory to go on with what the new "
                "changelog has, or reset the application with kafkalite-streams reset"
            )
        return f"it is of {known_changelog or 'something else'}"
    if offset > end:
        return f"it is at offset {offset} of a changelog that ends at {end}"
    if offset < beginning:
        return f"it is at offset {offset} of a changelog that begins at {beginning}"
    if offset < end and now_ms - kept.written_ms > DELETIONS_STAY_MS:
        return "it is older than deletions stay in the changelog"
    return None
