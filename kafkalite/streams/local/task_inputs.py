"""Which task reads which partitions.                                                      [P]

Owns   the topics of each sub-topology and their partition counts, as they were at the start.
Fails  with TopologyError for a partition that this topology does not read, or whose task has no
       place for its state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kafkalite.core.types import TopicPartition
from kafkalite.errors import TopologyError
from kafkalite.streams.local.assignor import TaskId, tasks_of
from kafkalite.streams.local.compile import SubTopology


class TaskInputs:
    """The inputs of an application's tasks. `sources`: the topics of each sub-topology."""

    def __init__(
        self,
        application_id: str,
        subs: Sequence[SubTopology],
        sources: Mapping[int, Sequence[str]],
        partitions_of: Mapping[str, int],
    ) -> None:
        self.partitions_of = partitions_of
        self._application_id = application_id
        self._subs = {sub.id: sub for sub in subs}
        self._internal = {topic.name for sub in subs for topic in sub.repartition_sources}
        self._tasks = tasks_of(sources, partitions_of)
        self._reader_of = {topic: sub for sub, topics in sources.items() for topic in topics}

    @property
    def topics(self) -> list[str]:
        """Every topic that is read."""
        return sorted(self._reader_of)

    def partitions(self, *, internal: bool) -> list[TopicPartition]:
        """Every partition of the repartition topics, or of all others."""
        return [
            TopicPartition(topic, number)
            for topic in self.topics
            if (topic in self._internal) is internal
            for number in range(self.partitions_of[topic])
        ]

    @property
    def changelogs(self) -> dict[TaskId, dict[str, TopicPartition]]:
        """The changelogs of each task with state, by store."""
        found: dict[TaskId, dict[str, TopicPartition]] = {}
        for task in self._tasks:
            for store in self._subs[task.sub_topology].stores:
                topic = store.changelog_topic
                if task.partition < self.partitions_of.get(topic, 0):
                    changelog = TopicPartition(topic, task.partition)
                    found.setdefault(task, {})[store.name] = changelog
        return found

    def reader(self, tp: TopicPartition) -> SubTopology:
        """The sub-topology that reads a partition."""
        return self._subs[self._reader_of[tp.topic]]

    def task_of(self, tp: TopicPartition) -> TaskId:
        """The task that reads a partition."""
        return TaskId(self._reader_of[tp.topic], tp.partition)

    def by_task(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TaskId, tuple[TopicPartition, ...]]:
        """The partitions of each task."""
        found: dict[TaskId, list[TopicPartition]] = {}
        for tp in partitions:
            if tp.topic not in self._reader_of:
                raise TopologyError(
                    f"the group gives this worker {tp}, which its topology does not read: another "
                    f"topology runs as {self._application_id!r}"
                )
            for changelog in self.reader(tp).changelogs:
                if tp.partition >= self.partitions_of[changelog.name]:
                    raise TopologyError(
                        f"{tp.topic!r} has more partitions than the internal topic "
                        f"{changelog.name!r}, which keeps the state of "
                        f"{self.partitions_of[changelog.name]}: use another application id, or "
                        "`kafkalite-streams reset`"
                    )
            found.setdefault(self.task_of(tp), []).append(tp)
        return {task_id: tuple(tps) for task_id, tps in found.items()}
