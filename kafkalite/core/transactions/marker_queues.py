"""Markers on their way to the leaders of partitions, in a cluster.                          [P]

    add ──> by leader: this broker ──> WriteHere
              │        another     ──> its queue ──one request under way──> SendMarkers
              │        nobody      ──> waits until the image names one
              └─ a retriable answer: again, after a pause ── to whoever leads by then
    every partition has its final answer ──> done

The image decides whether a partition exists; a broker that does not know it may only be slow to
learn. A partition whose leader has changed is not waited for at the old one: what that one may
still write is cut from its log, as it leads no more.

Owns   the markers that are not written yet. Each end of a transaction is one job, which a later
       one of the same producer replaces.
Never  reads a clock or sends anything. Never lets two requests to one broker be under way, nor one
       request have two markers of a producer.
Fails  with an error code for each partition; COORDINATOR_NOT_AVAILABLE for all where more than
       `partitions_max` wait.
Source apache/kafka `TransactionMarkerChannelManager`, `TransactionMarkerRequestCompletionHandler`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kafkalite.core.coordinators.deadlines import Deadlines
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ErrorCode

PARTITIONS_MAX: Final = 100_000  # that wait for their markers, of all transactions
PARTITIONS_PER_REQUEST: Final = 1_000
RETRY_MS: Final = 20  # after the first retriable answer; doubled with each further one
RETRY_MAX_MS: Final = 500
DOUBLINGS_MAX: Final = 10

NOBODY: Final = -1  # leads the partition now
NO_PARTITION: Final = -2  # there is no such partition
LeaderOf = Callable[[TopicPartition], int]

# Answers after which the same marker is not tried again here.
FINAL: Final = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)

Errors = Mapping[TopicPartition, ErrorCode]


def always() -> bool:
    """Whether a marker is wanted, where nobody takes it back."""
    return True


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of one producer's transaction."""

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int


@dataclass(slots=True, eq=False)
class Job:
    """The end of one transaction, in many partitions."""

    marker: Marker
    missing: set[TopicPartition]
    done: Callable[[Errors], None]
    is_wanted: Callable[[], bool]  # whether its coordinator is still one
    errors: dict[TopicPartition, ErrorCode] = field(default_factory=dict)
    failures: int = 0
    is_over: bool = False

    @property
    def is_live(self) -> bool:
        """Whether its markers are to be written."""
        return not self.is_over and self.is_wanted()


Entry = tuple[Job, TopicPartition]


@dataclass(frozen=True, slots=True)
class WriteHere:
    """An effect: this broker leads these partitions, and writes the marker itself."""

    job: Job
    partitions: tuple[TopicPartition, ...]


@dataclass(slots=True, eq=False)
class SendMarkers:
    """An effect: one request to another broker. Entries leave it once they are not awaited."""

    node_id: int
    number: int  # a later request has a larger one
    entries: dict[Entry, None]

    def by_job(self) -> dict[Job, list[TopicPartition]]:
        """The partitions of each job."""
        found: dict[Job, list[TopicPartition]] = {}
        for job, where in self.entries:
            found.setdefault(job, []).append(where)
        return found


Effect = WriteHere | SendMarkers


@dataclass(slots=True)
class Queue:
    """What one other broker is to be sent, and the request under way."""

    waiting: dict[Entry, None] = field(default_factory=dict)
    under_way: SendMarkers | None = None


class MarkerQueues:
    """All markers of the coordinators of broker `node_id`."""

    def __init__(
        self, node_id: int, leader_of: LeaderOf, partitions_max: int = PARTITIONS_MAX
    ) -> None:
        self._node_id = node_id
        self._leader_of = leader_of
        self._partitions_max = partitions_max
        self._jobs: dict[int, Job] = {}  # by producer id
        self._queues: dict[int, Queue] = {}  # by broker
        self._without_leader: dict[Entry, None] = {}
        self._resting: Deadlines[Entry] = Deadlines()
        self._count = 0
        self._number = 0  # of the last request

    def __len__(self) -> int:
        """How many partitions have not got their marker."""
        return self._count

    # -- what happens

    def add(
        self,
        marker: Marker,
        partitions: Collection[TopicPartition],
        done: Callable[[Errors], None],
        is_wanted: Callable[[], bool],
    ) -> list[Effect]:
        """A transaction has ended. `done` is called once every partition has its final answer,
        unless the job is not wanted any more or replaced by then."""
        before = self._jobs.pop(marker.producer_id, None)
        if before is not None:
            self._end(before)
        if not partitions or self._count + len(partitions) > self._partitions_max:
            done(dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return []
        job = self._jobs[marker.producer_id] = Job(marker, set(partitions), done, is_wanted)
        self._count += len(partitions)
        return self._routed((job, where) for where in partitions)

    def written_here(self, job: Job, errors: Errors, now_ms: int) -> list[Effect]:
        """This broker has written a job's markers, or could not."""
        self._note(job, errors, now_ms)
        return self._settled((job,))

    def answered(
        self,
        sent: SendMarkers,
        errors: Mapping[tuple[int, TopicPartition], ErrorCode] | ErrorCode,
        now_ms: int,
    ) -> list[Effect]:
        """Another broker has answered, by producer and partition; or an error says why not."""
        queue = self._queues[sent.node_id]
        assert queue.under_way is sent, f"broker {sent.node_id}: another request is under way"
        queue.under_way = None
        jobs = sent.by_job()
        for job, partitions in jobs.items():
            if isinstance(errors, ErrorCode):
                found = dict.fromkeys(partitions, errors)
            else:
                unsaid, producer = ErrorCode.UNKNOWN_SERVER_ERROR, job.marker.producer_id
                found = {where: errors.get((producer, where), unsaid) for where in partitions}
            self._note(job, found, now_ms)
        return self._settled(jobs)

    def leaders_changed(self) -> list[Effect]:
        """The image is another: what waits for the wrong broker goes to the right one."""
        moved: list[Entry] = list(self._without_leader)
        self._without_leader.clear()
        for node_id, queue in self._queues.items():
            under_way = {} if queue.under_way is None else queue.under_way.entries
            for entries in (queue.waiting, under_way):
                wrong = [entry for entry in entries if self._leader_of(entry[1]) != node_id]
                for entry in wrong:
                    del entries[entry]
                moved += wrong
        return self._routed(moved)

    def tick(self, now_ms: int) -> list[Effect]:
        """Tries again what has rested."""
        return self._routed(list(self._resting.due(now_ms)))

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do, or a little before."""
        return self._resting.next_ms()

    # -- what follows

    def _routed(self, entries: Iterable[Entry]) -> list[Effect]:
        """Puts entries where they belong now."""
        here: dict[Job, list[TopicPartition]] = {}
        touched: dict[Job, None] = {}
        for entry in entries:
            job, where = entry
            if not job.is_live:
                touched[job] = None
                continue
            leader = self._leader_of(where)
            if leader == self._node_id:
                here.setdefault(job, []).append(where)
            elif leader == NO_PARTITION:
                touched[job] = None
                self._finish(entry, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif leader == NOBODY:
                self._without_leader[entry] = None
            else:
                self._queues.setdefault(leader, Queue()).waiting[entry] = None
        effects: list[Effect] = [WriteHere(job, tuple(found)) for job, found in here.items()]
        return effects + self._settled(touched)

    def _note(self, job: Job, errors: Errors, now_ms: int) -> None:
        """Partitions have their markers, or are to be tried again."""
        if job.is_over:
            return
        pause_ms = min(RETRY_MS << min(job.failures, DOUBLINGS_MAX), RETRY_MAX_MS)
        has_failed = False
        for where, error in errors.items():
            if where not in job.missing:
                continue
            if error in FINAL:
                self._finish((job, where), error)
            else:
                has_failed = True
                self._resting.set((job, where), now_ms + pause_ms)
        job.failures += has_failed

    def _finish(self, entry: Entry, error: ErrorCode) -> None:
        job, where = entry
        job.missing.discard(where)
        job.errors[where] = error
        self._count -= 1

    def _settled(self, jobs: Iterable[Job]) -> list[Effect]:
        """Ends jobs that are complete or not wanted. Returns the next requests."""
        for job in tuple(jobs):
            if job.is_over:
                continue
            if not job.is_live:
                self._end(job)
            elif not job.missing:
                self._end(job)
                job.done(job.errors)
        return self._requests()

    def _end(self, job: Job) -> None:
        """Forgets a job; a request under way may still have its markers."""
        job.is_over = True
        self._count -= len(job.missing)
        if self._jobs.get(job.marker.producer_id) is job:
            del self._jobs[job.marker.producer_id]
        for where in job.missing:
            entry = job, where
            self._without_leader.pop(entry, None)
            self._resting.cancel(entry)
            for queue in self._queues.values():
                queue.waiting.pop(entry, None)

    def _requests(self) -> list[Effect]:
        """A request to each broker that has something to get, and none under way."""
        effects: list[Effect] = []
        for node_id, queue in self._queues.items():
            if queue.under_way is not None:
                continue
            entries: dict[Entry, None] = {}
            unwanted: dict[Job, None] = {}
            for entry in queue.waiting:
                if len(entries) >= PARTITIONS_PER_REQUEST:
                    break
                if entry[0].is_live:
                    entries[entry] = None
                else:
                    unwanted[entry[0]] = None
            for job in unwanted:
                self._end(job)
            for entry in entries:
                del queue.waiting[entry]
            if entries:
                self._number += 1
                queue.under_way = SendMarkers(node_id, self._number, entries)
                effects.append(queue.under_way)
        return effects
