"""A load: the new records of a topic, into a table, each exactly once.                     [IO]

    locked ─▶ recovered ─▶ planned ─▶ staged … ─▶ committed … ─▶ cleared

A load is a generator of steps. It may be broken off after any of them, also by kill -9: the next
load of the table recovers what was committed, carries out the plan that it finds, and then goes on
to the end of the log. Workers stage files that no reader sees; one commit adds them to the table.

Owns   the table's workspace while it runs. One load at a time may write a table.
Fails  with ConfigError if the table is that of another topic or has other folders; with
       StorageError if a log is shorter than its table, or if another load holds the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import ceil
from typing import Any, Protocol

import pyarrow as pa

from kafkalite.columnar.ranges import OffsetRange, ranges_between
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ConfigError, StorageError
from kafkalite.warehouse.changes import StageChanges
from kafkalite.warehouse.engines import Engine
from kafkalite.warehouse.evolution import Aliases, Evolution, evolved
from kafkalite.warehouse.log import Bounds
from kafkalite.warehouse.merging import BUCKET_RECORDS
from kafkalite.warehouse.partitioning import Partitioning
from kafkalite.warehouse.reading import DEAD_LETTERS, Reading
from kafkalite.warehouse.rewriting import ConformedRows, NewSchema, forget
from kafkalite.warehouse.splitting import FILE_BYTES, gaps, new_ranges, pieces
from kafkalite.warehouse.target import Epoch, Target
from kafkalite.warehouse.updating import Update
from kafkalite.warehouse.workspace import Plan, Staged, Workspace
from kafkalite.warehouse.writing import ReadRange, StageRange


class Source(Protocol):
    """A topic; see `kafkalite.warehouse.reading.TopicSource`."""

    @property
    def reading(self) -> Reading:
        """How records become rows, but for the schema."""

    def bounds(self) -> Bounds:
        """Where each partition begins and ends, and where a load ends."""

    def record_bytes(self) -> dict[TopicPartition, float]:
        """The mean size of a record in the log."""

    def resolved(
        self, engine: Engine, ranges: Sequence[OffsetRange], table: pa.Schema | None
    ) -> Reading:
        """The reading with the schema that rows of `ranges` are read as."""

    def columns(self, reading: Reading) -> pa.Schema:
        """The columns of the rows."""

    def aliases(self, reading: Reading) -> Aliases:
        """The older names of columns."""

    def rows(self, reading: Reading) -> ReadRange:
        """What workers read."""

    def changes(self, reading: Reading) -> ReadRange:
        """What workers read where rows are updated by their keys."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How rows are laid out in files. Without `partition_by` a table keeps its folders."""

    partition_by: str | None = None
    is_sorted: bool = True
    file_bytes: int = FILE_BYTES
    min_partitions: int = 1


@dataclass(slots=True)
class Loaded:
    """What a load has done so far. `gaps`: records that were deleted before they were loaded.
    `updated` rows are new or replace others, `deleted` keys ended: both of updates alone. `lag`
    counts the records of the log that the table does not hold afterwards.
    `changes`: what became of the table's columns, and how many files were `rewritten` for that.
    """

    records: int = 0
    files: int = 0
    updated: int = 0
    deleted: int = 0
    skipped: int = 0
    dead: int = 0
    lag: int = 0
    ranges: list[OffsetRange] = field(default_factory=list)
    gaps: list[OffsetRange] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    rewritten: int = 0


@dataclass(slots=True)
class Load:
    """A load of one topic into `target`; `dead` is the table of its dead letters. `progress` is
    called with the records that are staged and those of the plan. With `updates` a new table has
    one row for each key; a table keeps its way.
    """

    source: Source
    target: Target
    dead: Target
    engine: Engine
    layout: Layout = Layout()
    updates: bool = False
    progress: Callable[[int, int], None] = lambda _staged, _planned: None
    done: Loaded = field(default_factory=Loaded)
    is_committing: bool = field(default=False, init=False)  # a signal waits for the end of that
    _plan_now: Plan | None = field(default=None, init=False)

    @property
    def planned(self) -> int:
        """The records of the plan; 0 without one."""
        ranges = () if self._plan_now is None else self._plan_now.ranges
        return sum(r.end - r.start for r in ranges)

    def staged(self) -> int:
        """The records of the plan that workers have staged, whether the engine knows it or not."""
        ranges = () if self._plan_now is None else self._plan_now.ranges
        noted = Workspace(self.target.table).noted(ranges)
        return sum(r.end - r.start for r in noted)

    def run(self) -> Loaded:
        """All steps."""
        for _ in self.steps():
            pass
        return self.done

    def steps(self) -> Iterator[str]:
        """Brings the table up to the end of the log as it is now; yields the name of each step."""
        workspace = Workspace(self.target.table)
        with workspace.locked():
            yield "locked"
            yield from self.target.recover()
            committed = self.target.offsets()
            self._check_topic(self.target, committed)
            self._check_topic(self.dead, self.dead.offsets())
            self._how()
            now = self.source.bounds()
            self._check_end(committed, now.end)
            plan = workspace.plan()
            if plan is not None and self._goes_on_with(plan, committed, now.end):
                yield "resumed"
                yield from self._epoch(workspace, plan, now.first)
                committed = self.target.offsets()
            elif plan is not None:
                self._discard(workspace, plan, committed)
                yield "discarded"
            self.done.gaps += gaps(committed, now.first)
            ranges = new_ranges(committed, now.first, now.until)
            if ranges:
                plan = self._plan(ranges)
                workspace.begin(plan)
                yield "planned"
                yield from self._epoch(workspace, plan, now.first)
                now = self.source.bounds()
            committed |= {r.topic_partition: r.end for r in ranges}
            held = {tp: max(at, committed.get(tp, 0)) for tp, at in now.first.items()}
            self.done.lag = sum(r.end - r.start for r in ranges_between(held, now.end))

    def _plan(self, ranges: Sequence[OffsetRange]) -> Plan:
        layout = self.layout
        split = pieces(
            ranges,
            self.source.record_bytes(),
            file_bytes=layout.file_bytes,
            min_partitions=layout.min_partitions,
        )
        reading = self.source.resolved(self.engine, split, self.target.columns())
        self._evolution(reading)  # before anything is staged: can the table have these columns?
        how = self._how()
        if how.get("updates"):
            how["buckets"] = ceil(sum(r.end - r.start for r in split) / BUCKET_RECORDS)
        return Plan(tuple(split), asdict(reading), how)

    def _how(self) -> dict[str, Any]:
        """How rows are laid out; ConfigError where the table has them in another way."""
        how = {"partition_by": self._partitioning().by, "is_sorted": self.layout.is_sorted}
        return how | ({"updates": True} if self._has_updates() else {})

    def _has_updates(self) -> bool:
        there = self.target.has_updates()
        if self.updates and there is False:
            raise ConfigError(
                f"table {self.target.table} has a row for each record, so --upsert cannot update "
                "it; load into a new warehouse"
            )
        return self.updates if there is None else there

    def _partitioning(self) -> Partitioning:
        there, wanted = self.target.partitioning(), self.layout.partition_by
        if there is None or wanted in (None, there.by):
            return there or Partitioning(wanted)
        raise ConfigError(
            f"table {self.target.table} is partitioned by {there.by or 'nothing'}, not by {wanted}"
        )

    def _evolution(self, reading: Reading) -> Evolution:
        """What the table's columns become."""
        wanted, aliases = self.source.columns(reading), self.source.aliases(reading)
        return evolved(self.target.columns(), wanted, aliases, self._partitioning().by)

    def _epoch(
        self, workspace: Workspace, plan: Plan, first: Mapping[TopicPartition, int]
    ) -> Iterator[str]:
        """Stages the ranges of a plan and commits them."""
        self._plan_now = plan
        reading = Reading(
            **plan.reading
            | {
                "bootstrap_servers": self.source.reading.bootstrap_servers,
                "on_error": self.source.reading.on_error,
            }
        )
        partitioning = Partitioning(plan.layout["partition_by"])
        todo = [wanted for wanted in plan.ranges if workspace.staged(wanted) is None]
        for wanted in todo:
            if (begin := first[wanted.topic_partition]) > wanted.start:
                self.done.gaps.append(replace(wanted, end=min(begin, wanted.end)))
        planned = sum(r.end - r.start for r in plan.ranges)
        left = sum(r.end - r.start for r in todo)
        self.progress(planned - left, planned)
        evolution, update = self._evolution(reading), self._update(workspace, plan, reading)
        own = [evolution.columns.field(name) for name in self.source.columns(reading).names]
        stage: Callable[[OffsetRange], Staged]
        if update is not None:
            update.check()
            rows = ConformedRows(self.source.changes(reading), pa.schema(own))
            stage = StageChanges(rows, workspace.staging, update.keys, plan.layout["buckets"])
        else:
            stage = StageRange(
                ConformedRows(self.source.rows(reading), pa.schema(own)),
                workspace.staging,
                partitioning,
                plan.layout["is_sorted"],
                self.target.field_in_files,
            )
        for staged in self.engine.run(stage, todo):
            left -= staged.wanted.end - staged.wanted.start
            self.progress(planned - left, planned)
            yield f"staged {staged.wanted}"
        new = NewSchema(self.engine, self.target, workspace.staging, evolution, partitioning)
        self.done.rewritten += yield from new.steps()
        columns = evolution.columns if update is None else pa.schema(own)
        yield from self._commit(workspace, plan, columns, partitioning, update)
        self.done.changes += evolution.lines()

    def _update(self, workspace: Workspace, plan: Plan, reading: Reading) -> Update | None:
        if not plan.layout.get("updates"):
            return None
        by, is_sorted = Partitioning(plan.layout["partition_by"]), plan.layout["is_sorted"]
        keys = reading.key_columns()
        return Update(self.engine, self.target, workspace, plan.ranges, keys, by, is_sorted)

    def _commit(
        self,
        workspace: Workspace,
        plan: Plan,
        columns: pa.Schema,
        partitioning: Partitioning,
        update: Update | None,
    ) -> Iterator[str]:
        staged = [_found(workspace, wanted) for wanted in plan.ranges]
        self.is_committing = update is None
        files = tuple(file for each in staged for file in each.files)
        letters = tuple(file for each in staged for file in each.dead)
        if letters:
            dead = Epoch(plan.ranges, letters, DEAD_LETTERS, Partitioning())
            with Workspace(self.dead.table).locked():
                for step in self.dead.commit(dead, workspace.staging):
                    yield f"dead letters: {step}"
        epoch = Epoch(plan.ranges, files, columns, partitioning)
        if update is not None:
            epoch = yield from update.epoch(files, columns)
            self.is_committing = True
        yield from self.target.commit(epoch, workspace.staging)
        if update is not None:
            update.clean()
            self.done.updated += update.rows
            self.done.deleted += update.deleted
        workspace.clear()
        self.done.records += sum(file.records for file in files)
        self.done.files += len(epoch.files)
        self.done.skipped += sum(each.skipped for each in staged)
        self.done.dead += sum(file.records for file in letters)
        self.done.ranges += plan.ranges
        self.is_committing = False
        yield "cleared"

    def _goes_on_with(
        self,
        plan: Plan,
        committed: Mapping[TopicPartition, int],
        end: Mapping[TopicPartition, int],
    ) -> bool:
        """Whether a plan that broke off is still to be carried out, as it was made."""
        self._check_end({r.topic_partition: r.end for r in plan.ranges}, end)
        if Epoch(plan.ranges, (), DEAD_LETTERS, Partitioning()).is_in(self.dead.offsets()):
            return True  # its dead letters are committed
        is_new = all(r.start >= committed.get(r.topic_partition, 0) for r in plan.ranges)
        how = {name: told for name, told in plan.layout.items() if name != "buckets"}
        resolved = self.source.reading
        if resolved.value_format == "avro":
            resolved = self.source.resolved(self.engine, (), None)
        same = replace(resolved, on_error="fail").same_rows(plan.reading | {"on_error": "fail"})
        return is_new and how == self._how() and same

    def _discard(
        self, workspace: Workspace, plan: Plan, committed: Mapping[TopicPartition, int]
    ) -> None:
        """Forgets a plan; removes files of it that have their names and are in no commit."""
        for wanted in plan.ranges:
            staged = workspace.staged(wanted)
            if staged and committed.get(wanted.topic_partition, -1) < wanted.end:
                for file in () if "updates" in plan.layout else staged.files:
                    (self.target.table / file.path).unlink(missing_ok=True)
        if update := self._update(workspace, plan, self.source.reading):
            update.clean()
        forget(self.target, workspace.staging)
        workspace.clear()

    def _check_topic(self, target: Target, committed: Mapping[TopicPartition, int]) -> None:
        for held in sorted(committed):
            if held.topic != self.source.reading.topic:
                raise ConfigError(
                    f"table {target.table} holds topic {held.topic}, "
                    f"not {self.source.reading.topic}"
                )

    def _check_end(
        self, held: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
    ) -> None:
        """A log never ends before its table, unless the topic was deleted and made again."""
        for tp, offset in sorted(held.items()):
            if end.get(tp, 0) < offset:
                raise StorageError(
                    f"table {self.target.table} holds {tp} up to offset {offset}, and the log ends "
                    f"at {end.get(tp, 0)}: its topic was made anew, or has lost records; such a "
                    "log needs a warehouse of its own"
                )


def _found(workspace: Workspace, wanted: OffsetRange) -> Staged:
    staged = workspace.staged(wanted)
    assert staged is not None, f"{wanted} is staged before a commit"
    return staged
