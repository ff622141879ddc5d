"""A whole topology in plain Python, one record at a time.

Operators are nodes that push updates into those below them, one after the other, each to its end.
Internal topics are queues; the nodes that hang together without one are a task. A task takes the
earliest head of its inputs, of equal ones that of the first input of the topology.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = tuple[Any, Any, int]  # key, value, timestamp


@dataclass(frozen=True)
class Update:
    """A record of a stream, or an update of a table with the row that it replaces."""

    key: Any
    value: Any
    time: int
    old: Any = None
    knows_old: bool = False
    is_latest: bool = True  # of a versioned table: none with a later timestamp has come


class Node(ABC):
    """An operator. `parents` are those whose updates it takes."""

    takes_null_keys = False  # a join that has results for records without a key
    is_table = False  # made of another one

    def __init__(self, *parents: Node) -> None:
        self.parents = parents
        self.below: list[tuple[Node, int, str]] = []
        self.number = -1
        self.task: Task | None = None
        self.dropped = 0

    @abstractmethod
    def take(self, number: int, update: Update) -> None:
        """An update of one of the parents."""

    def emit(self, update: Update, port: str = "") -> None:
        """Pushes an update into all that read it."""
        for node, number, its in self.below:
            if its == port:
                node.take(number, update)

    def looks_up(self, number: int) -> bool:
        """Whether it takes no updates of that parent, but asks it for rows."""
        return False

    def reads_rows(self, number: int) -> bool:
        """Whether it asks that parent for rows, or needs those that its updates replace."""
        return False

    def shares(self) -> Iterable[Node]:
        """Nodes that have to be in its task besides its parents."""
        return ()

    def begin(self) -> None:  # noqa: B027
        """All nodes are there."""

    def end(self) -> None:  # noqa: B027
        """Emits what still waits for time to go on."""


class Table(Node):
    """A node whose rows others look up."""

    @abstractmethod
    def get(self, key: Any) -> tuple[Any, int]:
        """The row of a key and its timestamp."""

    def get_at(self, key: Any, time: int) -> Any:
        """The row, of a versioned table as it was at that time."""
        return self.get(key)[0]


class Source(Node):
    """A topic, from outside or internal."""

    def take(self, number: int, update: Update) -> None:
        self.emit(update)


class Queue(Node):
    """What writes an internal topic; its source reads it."""

    def __init__(self, parent: Node, *, drops_nulls: bool = True) -> None:
        super().__init__(parent)
        self.source = Source()
        self.drops_nulls = drops_nulls

    def reads_rows(self, number: int) -> bool:
        return True  # only tables whose left side is asked for stand directly above

    def take(self, number: int, update: Update) -> None:
        if update.key is None and self.drops_nulls and not leads_to_left_join(self.source):
            return
        assert self.task is not None
        self.task.made.append((self.source, update))


def leads_to_left_join(node: Node) -> bool:
    """Whether a record may come to a join that takes records without a key."""
    below = [child for child, number, _ in node.below if not child.looks_up(number)]
    return any(
        child.takes_null_keys
        or leads_to_left_join(child.source if isinstance(child, Queue) else child)
        for child in below
    )


class Task:
    """Nodes that hang together."""

    def __init__(self) -> None:
        self.inputs: dict[Source, deque[Update]] = {}
        self.made: list[tuple[Source, Update]] = []
        self.stream_time = -1
        self.timers: list[Any] = []
        self.called: list[tuple[Callable[[int, Update], None], int, Update]] = []

    def process(self) -> bool:
        """Takes one record to its end; whether there was one."""
        heads = [(queue[0].time, source.number) for source, queue in self.inputs.items() if queue]
        if not heads:
            return False
        _, number = min(heads)
        source = next(each for each in self.inputs if each.number == number)
        update = self.inputs[source].popleft()
        self.stream_time = max(self.stream_time, update.time)
        source.take(0, update)
        self.ring()
        while self.called:
            take, number, result = self.called.pop(0)
            take(number, result)
        return True

    def ring(self) -> None:
        """Calls the timers that are due."""
        while due := [timer for timer in self.timers if timer.due <= self.stream_time]:
            timer = min(due, key=lambda each: each.due)
            timer.ring(self.stream_time)


class Output(Node):
    """A topic that is read outside."""

    def __init__(self, parent: Node) -> None:
        super().__init__(parent)
        self.rows: list[Row] = []

    def take(self, number: int, update: Update) -> None:
        self.rows.append((update.key, update.value, update.time))


class Machine:
    """All tasks of one partition."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.sources: dict[str, Source] = {}
        self.globals: dict[str, Node] = {}
        self.outputs: dict[str, Output] = {}
        self.tasks: list[Task] = []

    def add(self, node: Any, *ports: str) -> Any:
        """A node below its parents, reading what each puts out of a port."""
        for number, parent in enumerate(node.parents):
            port = ports[number] if number < len(ports) else ""
            parent.below.append((node, number, port))
        node.number = len(self.nodes)
        self.nodes.append(node)
        if isinstance(node, Queue):
            self.add(node.source)
        return node

    def through(self, parent: Node, *, drops_nulls: bool = True) -> Source:
        """A parent behind an internal topic."""
        queue: Queue = self.add(Queue(parent, drops_nulls=drops_nulls))
        return queue.source

    def start(self) -> None:
        """Finds the tasks."""
        group = {node: node.number for node in self.nodes}
        for node in self.nodes:
            joined = {group[node], *(group[each] for each in (*node.parents, *node.shares()))}
            group = {each: min(joined) if its in joined else its for each, its in group.items()}
        tasks = {number: Task() for number in sorted(set(group.values()))}
        for node, number in group.items():
            node.task = tasks[number]
        used = {node.task for node in self.nodes if isinstance(node, Source)}
        self.tasks = [task for task in tasks.values() if task in used]
        for node in self.nodes:
            node.begin()

    # Records

    def put(self, topic: str, rows: Sequence[Row]) -> None:
        """Records that a task has yet to process."""
        if topic in self.globals:
            for row in rows:
                self.globals[topic].take(0, Update(*row))
            return
        source = self.sources[topic]
        assert source.task is not None
        source.task.inputs.setdefault(source, deque()).extend(Update(*row) for row in rows)

    def pipe(self, topic: str, row: Row) -> None:
        """A record and all that follows from it: always the first task that has something."""
        self.put(topic, [row])
        while any(task.process() for task in self.tasks) | self.route():
            pass

    def feed(self, batches: Mapping[str, Sequence[Row]]) -> None:
        """A fetch of several topics: each task goes through all that it has, then the next."""
        for topic, rows in batches.items():
            self.put(topic, rows)
        busy = True
        while busy:
            ran = [self._drained(task) for task in self.tasks]
            busy = self.route() or any(ran)

    def _drained(self, task: Task) -> bool:
        ran = False
        while task.process():
            ran = True
        return ran

    def route(self) -> bool:
        """Whether anything went into internal topics."""
        routed = False
        for task in self.tasks:
            made, task.made = task.made, []
            for source, update in made:
                assert source.task is not None
                source.task.inputs.setdefault(source, deque()).append(update)
                routed = True
        return routed

    def end(self) -> None:
        """Lets everything go that waits, those above first."""
        for node in self.nodes:
            node.end()
            self.feed({})

    # Results

    @property
    def dropped(self) -> int:
        return sum(node.dropped for node in self.nodes)

    def rows(self, topic: str) -> list[Row]:
        return self.outputs[topic].rows


def as_table(rows: Sequence[Row]) -> dict[Any, Any]:
    """The last row of each key, deletions left out."""
    latest = {key: value for key, value, _ in rows}
    return {key: value for key, value in latest.items() if value is not None}


def as_bag(rows: Sequence[Row]) -> Counter[str]:
    """The rows whatever their order."""
    return Counter(map(repr, rows))
