"""Topologies whose results do not depend on who comes first: for several partitions and workers.

Nothing is late, aggregates do not care for order, tables are complete before streams look into
them.

    bag       the same records in some order
    part      some of these records, each once: others wait for time to go on
    state     the last update of each key has the same value
    groups    the same, but for groups that are empty
    loose     the order of partitions shows
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal, TypeVar

from kafkalite.core.types import Columns
from kafkalite.serde import MemoryRegistry, SerdeContext, json, string
from kafkalite.serde.serde import Codec, Serde
from kafkalite.streams import Streams
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.plan import Plan, Sink
from reference import aggregate_steps as a
from reference import join_steps as j
from reference import steps as s
from reference.drawing import NAMES_OF_KEYS, Topology, draw_topology, draw_value
from reference.machine import Row, as_table
from reference.sameness import joining_themselves
from reference.values import OF_NUMBERS, OF_TEXTS, OTHERS, Folding

Like = Literal["bag", "part", "state", "groups", "loose"]

Table = TypeVar("Table", s.Read, s.AsTable)

GRACE = 10_000  # longer than a log
HISTORY = 10_000_000
LATER = 1_000_000  # when records come that close what came before
START = 1_690_000_000_000  # before any time that the clock may be set to


@dataclass(frozen=True)
class Calm:
    """What is known of the output of a step."""

    like: Like
    is_static: bool = False  # a table that is complete before streams look into it
    keeps_order: bool = False  # a stream in which records of a key stand as in their topic


def calmed(topology: Topology) -> Topology:
    """The same operators, with longer graces and aggregates that do not care for order."""
    return Topology(tuple(map(_calmed, topology.steps)))


def _calmed(step: s.Step) -> s.Step:
    match step:
        case a.Aggregated():
            window = step.window and replace(step.window, grace=GRACE)
            return replace(step, window=window, folding=_commutative(step.folding))
        case a.Cogrouped():
            window = step.window and replace(step.window, grace=GRACE)
            return replace(step, window=window, in_order=False)
        case j.JoinedStreams() | j.JoinedAsOf() | j.Matched():
            return replace(step, grace=GRACE)
        case s.Read():  # workers have registries of their own
            serde = "json" if step.serde == "avro" else step.serde
            return replace(_keeping(step), serde=serde)
        case s.AsTable():
            return _keeping(step)
        case s.Stateless() | s.OfRows() if step.on_error == "dlq":  # there is no such topic
            return replace(step, on_error="skip")
        case _:
            return step


def _keeping(step: Table) -> Table:
    """The same, with rows that do not leave."""
    history, retention = (each and HISTORY for each in (step.history, step.retention))
    return replace(step, history=history, retention=retention)


def _commutative(folding: Folding) -> Folding:
    parts = {"n": OF_NUMBERS, "t": OF_TEXTS}
    fields = tuple(
        (name, how if parts.get(name, OTHERS)[how].is_commutative else "max")
        for name, how in folding.fields
        if name in parts or OTHERS[how].is_commutative
    )
    return replace(folding, fields=fields)


def calm(steps: Sequence[s.Step]) -> list[Calm]:
    """Of each step."""
    found: list[Calm] = []
    for step, joins_itself in zip(steps, joining_themselves(steps), strict=True):
        above = [found[place] for place in step.parents]
        found.append(LOOSE if joins_itself else _of(step, above, steps))
    return found


LOOSE = Calm("loose")


def _of(step: s.Step, above: list[Calm], steps: Sequence[s.Step]) -> Calm:
    likes = {each.like for each in above}
    first = above[0] if above else LOOSE
    all_static = all(each.is_static for each in above)
    match step:
        case s.Read():
            if step.kind == "stream":
                return Calm("bag", keeps_order=True)
            return Calm("state", is_static=True)
        case s.Stateless():
            keeps = first.keeps_order and step.word in ("map", "filter", "filter_not", "flat_map")
            return replace(first, keeps_order=keeps) if likes <= {"bag", "part"} else LOOSE
        case s.Arms() | s.Arm() | s.Rekeyed() | s.Merged() | s.Repartitioned():
            return _worst(likes)
        case j.LookedUpEverywhere():
            return _worst({first.like})
        case j.LookedUp() | s.LookedInto():
            like = "part" if isinstance(step, j.LookedUp) and step.grace else first.like
            return _worst({like}) if above[1].is_static and above[1].like == "state" else LOOSE
        case a.Aggregated() | a.Cogrouped():
            is_calm = step.folding.word in ("fields", "count") if hasattr(step, "folding") else True
            return Calm("state") if likes == {"bag"} and is_calm else LOOSE
        case s.Final():
            return _final(step, steps, first)
        case s.OfRows():
            return first
        case a.Regrouped():
            return Calm("groups", all_static) if likes == {"state"} else LOOSE
        case j.JoinedTables() | j.JoinedByField():
            return Calm("state", all_static) if likes == {"state"} else LOOSE
        case s.AsTable():
            return Calm("state") if first.like == "bag" and first.keeps_order else LOOSE
        case j.JoinedStreams() | j.JoinedAsOf():
            is_bag = isinstance(step, j.JoinedStreams) and step.how == "inner"
            return Calm("bag" if is_bag else "part") if likes == {"bag"} else LOOSE
        case s.Write():
            return first
        case _:
            return LOOSE


def _worst(likes: set[Like]) -> Calm:
    if not likes <= {"bag", "part"}:
        return LOOSE
    return Calm("part" if "part" in likes else "bag")


def _final(step: s.Step, steps: Sequence[s.Step], table: Calm) -> Calm:
    above = steps[step.parents[0]]
    while isinstance(above, s.OfRows) and above.word == "map":
        above = steps[above.parents[0]]
    is_window = isinstance(above, a.Aggregated | a.Cogrouped)
    return Calm("part") if is_window and table.like == "state" else LOOSE


def problem(like: Like, found: list[Row], wanted: list[Row]) -> str | None:
    """How rows are not as alike as they should be."""
    if like in ("bag", "part"):
        bags = Counter(map(repr, found)), Counter(map(repr, wanted))
        more, less = bags[0] - bags[1], bags[1] - bags[0]
        return f"too much: {more}, missing: {less}" if more or (less and like == "bag") else None
    tables = [as_table(rows) for rows in (found, wanted)]
    if like == "groups":
        tables = [{k: v for k, v in table.items() if v["n"] != 0} for table in tables]
    return None if like == "loose" or tables[0] == tables[1] else f"{tables[0]}, not {tables[1]}"


def draw_calm(random: Random) -> Topology:
    """A topology of which something can be compared."""
    while True:
        topology = calmed(draw_topology(random))
        if any(each.like != "loose" for each in calm(topology.steps)):
            return topology


def check(
    topology: Topology, phases: list[list[tuple[str, Row]]], read: Callable[[str], list[Row]]
) -> None:
    """Compares what `read` finds in the topics of outputs with the plain interpreter."""
    machine = topology.machine()
    for phase in phases:
        for topic, row in phase:
            machine.pipe(topic, row)
    machine.end()
    for topic, like in topology.outputs([each.like for each in calm(topology.steps)]).items():
        found = problem(like, read(topic), machine.rows(topic))
        assert found is None, f"{topic}, {like}: {found}\n{topology}"


# Logs and outputs


def draw_phases(random: Random, topology: Topology, scale: int = 1) -> list[list[tuple[str, Row]]]:
    """The records of tables, those of streams, and later ones of streams; no timestamp twice."""
    reads = [step for step in topology.steps if isinstance(step, s.Read)]
    streams = [step.topic for step in reads if step.kind == "stream"]
    tables = [step.topic for step in reads if step.kind != "stream"]
    phases = []
    for topics, first, count in ((tables, 0, 25), (streams, 0, 50), (streams, LATER, 12)):
        times = range(first, first + 200 * scale)
        some = random.sample(times, count * scale if topics else 0)
        if random.random() < 0.5:
            some.sort()
        phases.append([(random.choice(topics), _row(random, START + time)) for time in some])
    return phases


def _row(random: Random, time: int) -> Row:
    key: Any = random.choice(NAMES_OF_KEYS)
    return key, draw_value(random), time


def by_topic(topology: Topology, rows: Sequence[tuple[str, Row]]) -> dict[str, Columns]:
    """Records as a producer sends them."""
    serdes = {step.topic: step.serde for step in topology.steps if isinstance(step, s.Read)}
    found: dict[str, list[Row]] = {}
    for topic, row in rows:
        found.setdefault(topic, []).append(row)
    made = {}
    for topic, its in found.items():
        keys, values = codecs(string(), s.SERDES[serdes[topic]])
        key_bytes = keys.serialize(topic, [row[0] for row in its])
        value_bytes = values.serialize(topic, [row[1] for row in its])
        made[topic] = Columns(key_bytes, value_bytes, [row[2] for row in its])
    return made


def as_objects(plan: Plan, topic: str, columns: Columns) -> list[Row]:
    """Records of an output, read with the serdes of what wrote it."""
    subs = compile_topology(plan)
    sinks = (node for sub in subs for node in sub.nodes if isinstance(node, Sink))
    sink = next(each for each in sinks if each.topic == topic)
    assert sink.key is not None
    assert sink.value is not None
    keys, values = codecs(sink.key, sink.value)
    found = keys.deserialize(topic, columns.keys), values.deserialize(topic, columns.values)
    return list(zip(*found, columns.timestamps, strict=True))


def codecs(key: Serde, value: Serde) -> tuple[Codec, Codec]:
    registry = MemoryRegistry()
    return key.open(SerdeContext(registry, True)), value.open(SerdeContext(registry, False))


def plan_of(topology: Topology, *, is_cached: bool) -> Plan:
    """The plan of an application called "app"."""
    app: Streams[str, Any] = Streams("app", key=string(), value=json())
    if not is_cached:
        app.cache = 0
    return replace(topology.build(app).plan(), max_future_ms=None)
