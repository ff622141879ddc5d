"""What became of one record: what each operator passed on.                                [P]

    stream orders        'ann' → {'amount': 5} at 0
    filter big           nothing
    map gross            'ann' → 5.95 at 0
    to gross-to          'ann' → 5.95 at 0

Owns   the form of an explanation. Whoever runs a topology notes the steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kafkalite.streams import plan as p
from kafkalite.streams.describe import kind
from kafkalite.streams.record import Record

WORDS_OF = {p.Source: "stream", p.TableSource: "table", p.Sink: "to", p.GlobalJoin: "join"}


@dataclass(frozen=True, slots=True)
class Step:
    """What left an operator at once. `operator` is its word, as `filter`; `name` its name."""

    operator: str
    name: str
    records: tuple[Record, ...]
    topic: str | None = None  # of a sink

    def __str__(self) -> str:
        """One line for each record."""
        head = f"{self.operator} {self.name}"
        lines = [f"{_short(r.key)} → {_short(r.value)} at {r.timestamp}" for r in self.records]
        into = f" into {self.topic!r}" if self.topic else ""
        return "\n".join(f"{head:<40} {line}{into}" for line in lines or ["nothing"])


@dataclass(frozen=True, slots=True)
class Explanation:
    """The steps of one record in their order. `error`: what ended it, if something did."""

    steps: tuple[Step, ...]
    error: Exception | None = None

    def passed_on(self, name: str) -> list[Record]:
        """What the operator of that name passed on."""
        return [record for step in self.steps if step.name == name for record in step.records]

    def __str__(self) -> str:
        """The steps as text, one record a line."""
        ended = [] if self.error is None else [f"failed: {self.error}"]
        return "\n".join([*map(str, self.steps), *ended])


@dataclass(slots=True)
class Steps:
    """Steps as they are noted, to which operators that passed nothing on are added at the end."""

    nodes: Sequence[p.Node]
    noted: list[tuple[p.Node, p.Port, Step]] = field(default_factory=list)

    def note(self, node: p.Node, port: p.Port, records: Sequence[Record]) -> None:
        """Something left `node` by `port`."""
        self.noted.append((node, port, Step(word_of(node), node.name, tuple(records))))

    def written(self, sink: p.Sink, topic: str, records: Sequence[Record]) -> None:
        """A sink wrote into a topic."""
        step = Step(word_of(sink), sink.name, tuple(records), topic)
        self.noted.append((sink, p.Port.RECORDS, step))

    def dead_letter(self, topic: str, records: Sequence[Record]) -> None:
        """An operator failed, and a dead letter was written."""
        step = Step("dead letter", "", tuple(records), topic)
        self.noted.append((self.nodes[0], p.Port.RECORDS, step))

    def explanation(self, error: Exception | None = None) -> Explanation:
        """Everything that was noted. An operator that got records and passed none on says so,
        behind the first step of the operator above it; after an error nobody knows of the others.
        """
        active = {node for node, _, _ in self.noted}
        steps: list[Step] = []
        listed = set[p.Node]()
        for node, port, step in self.noted:
            steps.append(step)
            silent = (
                child
                for child in self.nodes
                if node in child.parents and child.reads is port
                if child not in active and child not in listed
            )
            for child in silent if step.records and error is None else ():
                listed.add(child)
                steps.append(Step(word_of(child), child.name, ()))
        return Explanation(tuple(steps), error)


def word_of(node: p.Node) -> str:
    """What users call an operator."""
    return WORDS_OF.get(type(node)) or kind(node)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:199]}…"
