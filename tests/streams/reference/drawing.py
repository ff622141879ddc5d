"""Random topologies and random logs. What is drawn follows from a `Random` alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal, TypeVar

from reference import aggregate_steps as a
from reference import join_steps as j
from reference import steps as s
from reference.machine import Machine, Row
from reference.values import KEYS, MAPS, OF_NUMBERS, OF_TEXTS, OTHERS, TESTS, Folding

A = TypeVar("A", bound=str)
TOPICS = ("p", "q", "r")
NAMES_OF_KEYS = ("a", "b", "ab", None)
FRAGILE = ("map", "filter", "filter_not", "flat_map", "select_key")
HOWS = ("inner", "left", "outer")
GRACES = (0, 0, 3, 10, 100)
SIZES = (4, 10, 25)  # of windows
END = 60  # timestamps are below


@dataclass(frozen=True)
class Topology:
    """Operators, parents first."""

    steps: tuple[s.Step, ...]

    def build(self, app: Any) -> Any:
        """With the API."""
        made: list[Any] = []
        for step in self.steps:
            made.append(step.build(app, [made[place] for place in step.parents]))
        return app

    def machine(self) -> Machine:
        """In plain Python."""
        machine = Machine()
        made: list[s.Made] = []
        for step in self.steps:
            made.append(step.plain(machine, [made[place] for place in step.parents]))
        machine.start()
        return machine

    def outputs(self, alike: Sequence[A]) -> dict[str, A | Literal["loose"]]:
        """The topics that it writes, and what is known of each, given that of each step. Where
        several write one, it is known if they are all alike, and records."""
        found: dict[str, A | Literal["loose"]] = {}
        for step, its in zip(self.steps, alike, strict=True):
            if isinstance(step, s.Write) and found.setdefault(step.topic, its) != its:
                found[step.topic] = "loose"
        shared = [step.topic for step in self.steps if isinstance(step, s.Write)]
        for topic, its in found.items():
            if shared.count(topic) > 1 and its not in ("exact", "bag", "part"):
                found[topic] = "loose"
        return found

    @property
    def topics(self) -> list[str]:
        return [step.topic for step in self.steps if isinstance(step, s.Read)]

    def has(self, *kinds: type[s.Step]) -> bool:
        return any(isinstance(step, kinds) for step in self.steps)

    def __str__(self) -> str:
        return "\n".join(f"{place}: {step}" for place, step in enumerate(self.steps))


class Drawing:
    """A topology under construction."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.steps: list[s.Step] = []
        self.topics = list(TOPICS)

    def draw(self, size: int) -> Topology:
        self.read("stream")
        wanted = [self.random.choice(METHODS) for _ in range(size * 4)]
        drawn = 0
        for method in wanted:
            drawn += bool(method(self)) and drawn < size
            if drawn >= size:
                break
        self.end()
        return Topology(tuple(self.steps))

    def end(self) -> None:
        """Topics for all that nobody reads, and for some that others read too."""
        for place, step in list(enumerate(self.steps)):
            is_read = any(place in other.parents for other in self.steps)
            if isinstance(step, s.Arms | s.Write) or step.kind == "global":
                continue
            if not is_read or (not isinstance(step, s.Read) and self.random.random() < 0.3):
                is_shared = step.kind in ("stream", "table") and self.chance(0.1)
                topic = "shared" if is_shared else f"out{place}"
                self.add(s.Write, (place,), "stream", topic=topic)

    def add(self, kind: type[s.Step], parents: Sequence[int], its: s.Kind, **fields: Any) -> int:
        place = len(self.steps)
        self.steps.append(kind(tuple(parents), its, f"s{place}", **fields))
        return place

    def find(self, *kinds: s.Kind) -> int | None:
        """A step whose output is one of these, most often one that nobody reads yet."""
        found = [
            place for place, step in enumerate(self.steps)
            if step.kind in kinds and not isinstance(step, s.Arms | s.Write)
        ]  # fmt: skip
        unread = [p for p in found if not any(p in step.parents for step in self.steps)]
        if unread and self.chance(0.7):
            return self.random.choice(unread)
        return self.random.choice(found) if found else None

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def choice(self, options: Any) -> Any:
        return self.random.choice(list(options))

    # Topics

    def read(self, kind: s.Kind, **fields: Any) -> int | None:
        if not self.topics:
            return None
        serde = self.choice(["json", "json", "msgpack", "avro"])
        return self.add(s.Read, (), kind, topic=self.topics.pop(0), serde=serde, **fields)

    def stream(self) -> int:
        """A stream, perhaps another topic."""
        if self.chance(0.35) and (place := self.read("stream")) is not None:
            return place
        place = self.find("stream")
        assert place is not None
        return place

    def table(self, *kinds: s.Kind) -> int:
        """A table by plain keys."""
        place = self.find(*(kinds or ("table", "versions"))) if self.chance(0.7) else None
        if place is None:
            place = self.read("table", named=self.chance(0.6), retention=self.retention())
        return self.as_table(*kinds) if place is None else place

    # Operators

    def stateless(self) -> int:
        word = self.choice(
            ["map", "filter", "filter_not", "flat_map", "select_key", "select_key", "map_pairs",
             "flat_map_pairs", "map_async", "map_batch"]
        )  # fmt: skip
        forms = MAPS if word == "map" else TESTS if word.startswith("filter") else KEYS
        function = self.choice(forms)
        on_error = None if word not in FRAGILE else self.policy()
        as_expression = forms[function].expression is not None and self.chance(0.5)
        return self.add(
            s.Stateless, (self.stream(),), "stream", word=word, function=function,
            as_expression=as_expression and on_error is None, on_error=on_error,
        )  # fmt: skip

    def policy(self) -> s.Policy | None:
        return self.choice([None, None, None, "skip", "dlq"])

    def branch(self) -> int:
        tests = tuple(self.random.sample(list(TESTS), self.choice([1, 2])))
        place = self.add(s.Arms, (self.stream(),), "stream", tests=tests)
        arms = [self.add(s.Arm, (place,), "stream", index=n) for n in range(len(tests) + 1)]
        return arms[0]

    def merge(self) -> int | None:
        parents = {self.stream(), self.stream(), self.stream()}
        return self.add(s.Merged, sorted(parents), "stream") if len(parents) > 1 else None

    def repartition(self) -> int:
        return self.add(s.Repartitioned, (self.stream(),), "stream")

    def process(self) -> int:
        processor, keeps_key = self.choice(["counts", "latest"]), self.chance(0.5)
        if processor == "counts":
            keeps_key = False
        return self.add(
            s.Processed, (self.stream(),), "stream", processor=processor, keeps_key=keeps_key
        )

    def look_into(self) -> int:
        found = [n for n, step in enumerate(self.steps) if has_store(step)]
        if not found or self.chance(0.3):
            found = [self.table("table")]
        table = self.choice(found)
        if not has_store(self.steps[table]):
            table = self.add(s.AsTable, (self.stream(),), "table")
        return self.add(s.LookedInto, (self.stream(), table), "stream", keeps_key=self.chance(0.5))

    def as_table(self, *kinds: s.Kind) -> int:
        history = self.choice([None, None, None, 15, 100]) if kinds != ("table",) else None
        kind: s.Kind = "table" if history is None else "versions"
        return self.add(
            s.AsTable, (self.stream(),), kind, named=self.chance(0.5), history=history,
            retention=None if history else self.retention(),
        )  # fmt: skip

    def retention(self) -> int | None:
        return self.choice([None, None, None, 5, 20])

    def aggregate(self) -> int:
        window = self.window() if self.chance(0.6) else None
        return self.aggregate_over(window, self.choice([None, *KEYS]))

    def aggregate_over(self, window: a.Window | None, key: str | None) -> int:
        return self.add(
            a.Aggregated, (self.stream(),), kind_over(window), folding=self.folding(window),
            key=key, window=window, cached=self.chance(0.8),
            as_expression=key is not None and KEYS[key].expression is not None and self.chance(0.5),
        )  # fmt: skip

    def folding(self, window: a.Window | None) -> Folding:
        """What is folded. The field of no value cannot be had by its name."""
        word = self.choice(["fields", "fields", "fields", "count", "fold", "reduce"])
        fields = [("n", self.choice(OF_NUMBERS)), ("t", self.choice(OF_TEXTS))]
        fields += [(name, name) for name in OTHERS if self.chance(0.2)]
        forms = ("expression", "function") if window else ("expression", "function", "name")
        return Folding(word, tuple(fields) if word == "fields" else (), self.choice(forms))

    def window(self, *words: str) -> a.Window:
        word = self.choice(words or ("time", "session", "sliding", "unlimited"))
        size = self.choice(SIZES)
        advance = self.choice([size, size, size // 2, 3])
        return a.Window(word, size, advance, self.choice(GRACES))

    def cogroup(self) -> int:
        parents = sorted({self.stream(), self.stream()})
        window = self.window() if self.chance(0.6) else None
        return self.add(a.Cogrouped, parents, kind_over(window), window=window)

    def rows(self) -> int:
        place = self.find("table", "windows", "spans", "endless", "versions")
        place = self.table() if place is None else place
        word = self.choice(["map", "filter", "filter_not"])
        forms = MAPS if word == "map" else TESTS
        function = self.choice(forms)
        may_fail = word != "map" and self.steps[place].kind == "table"
        on_error = self.policy() if may_fail else None
        as_expression = forms[function].expression is not None and self.chance(0.5)
        return self.add(
            s.OfRows, (place,), self.steps[place].kind, word=word, function=function,
            as_expression=as_expression and on_error is None, named=self.chance(0.3),
            on_error=on_error,
        )  # fmt: skip

    def updates(self) -> int:
        place = self.find("table", "windows", "spans", "endless", "versions")
        place = self.table() if place is None else place
        plain = self.steps[place].kind in ("table", "versions")
        return self.add(s.Updates, (place,), "stream" if plain else "keyed by windows")

    def final(self) -> int | None:
        place = self.find("windows", "spans")
        if place is None:
            return None
        return self.add(s.Final, (place,), "keyed by windows")

    def late(self) -> int | None:
        place = self.find("windows", "spans")
        above = place
        while above is not None and isinstance(self.steps[above], s.OfRows | s.Suppressed):
            above = self.steps[above].parents[0]
        if place is None or above is None or not isinstance(self.steps[above], a.Aggregated):
            return None
        return self.add(s.Late, (place,), "stream")

    def suppress(self) -> int:
        place = self.find("table", "windows", "spans", "endless")
        place = self.table("table") if place is None else place  # one that knows no older rows
        return self.add(
            s.Suppressed, (place,), self.steps[place].kind, limit=self.choice([0, 5, 20]),
            most=self.choice([None, None, 2]),
        )  # fmt: skip

    def rekey(self) -> int | None:
        place = self.find("keyed by windows")
        return None if place is None else self.add(s.Rekeyed, (place,), "stream")

    def regroup(self) -> int:
        return self.add(a.Regrouped, (self.table(),), "table", key=self.choice(KEYS))

    # Joins

    def join_streams(self) -> int:
        before, after = self.choice([(5, 5), (0, 10), (10, 0), (-3, 8), (8, -3), (0, 0), (30, 2)])
        return self.add(
            j.JoinedStreams, (self.stream(), self.stream()), "stream", how=self.choice(HOWS),
            before=before, after=after, grace=self.choice(GRACES), as_expression=self.chance(0.5),
        )  # fmt: skip

    def join_as_of(self) -> int:
        return self.add(
            j.JoinedAsOf, (self.stream(), self.stream()), "stream", how=self.choice(HOWS[:2]),
            tolerance=self.choice([0, 5, 30]), grace=self.choice(GRACES),
            as_expression=self.chance(0.5),
        )  # fmt: skip

    def look_up(self) -> int:
        table = self.table()
        grace = None
        if self.steps[table].kind == "versions":
            grace = self.choice([None, 0, 5, 15])
        return self.add(
            j.LookedUp, (self.stream(), table), "stream", how=self.choice(HOWS[:2]), grace=grace,
            as_expression=self.chance(0.5),
        )  # fmt: skip

    def look_up_everywhere(self) -> int | None:
        table = self.find("global") if self.chance(0.5) else None
        table = self.read("global") if table is None else table
        if table is None:
            return None
        key = self.choice(KEYS)
        return self.add(
            j.LookedUpEverywhere, (self.stream(), table), "stream", how=self.choice(HOWS[:2]),
            key=key, as_expression=KEYS[key].expression is not None and self.chance(0.5),
            function_as_expression=self.chance(0.5),
        )  # fmt: skip

    def join_tables(self) -> int | None:
        left, right = self.table(), self.table()
        if left == right:
            return None
        return self.add(
            j.JoinedTables, (left, right), "table", how=self.choice(HOWS), named=self.chance(0.4),
            as_expression=self.chance(0.5),
        )  # fmt: skip

    def join_windows(self) -> int | None:
        left = self.find("windows", "spans", "endless")
        if left is None:
            return None
        kind, window = self.steps[left].kind, self.window_of(left)
        others = [place for place, step in enumerate(self.steps) if step.kind == kind]
        alike = [p for p in others if p != left and self.window_of(p).is_like(window)]
        if alike and self.chance(0.6):
            right = self.choice(alike)
        else:
            right = self.aggregate_over(replace(window, grace=self.choice(GRACES)), None)
        return self.add(
            j.JoinedTables, (left, right), kind, how=self.choice(HOWS),
            named=self.chance(0.4), as_expression=self.chance(0.5),
        )  # fmt: skip

    def window_of(self, place: int) -> a.Window:
        """Over which a table is aggregated."""
        step = self.steps[place]
        while not isinstance(step, a.Aggregated | a.Cogrouped):
            step = self.steps[step.parents[0]]
        assert step.window is not None
        return step.window

    def join_by_field(self) -> int | None:
        left, right = self.table("table"), self.table("table")
        if left == right:
            return None
        key = self.choice(KEYS)
        return self.add(
            j.JoinedByField, (left, right), "table", how=self.choice(HOWS[:2]),
            key=key, as_expression=KEYS[key].expression is not None and self.chance(0.5),
            named=self.chance(0.4), function_as_expression=self.chance(0.5),
        )  # fmt: skip

    def match(self) -> int:
        size = self.choice([2, 2, 3])
        steps = tuple(self.condition(is_outer=n in (0, size - 1)) for n in range(size))
        return self.add(
            j.Matched, (self.stream(),), "stream", steps=steps, without=self.chance(0.5),
            within=self.choice([0, 10, 100]), grace=self.choice(GRACES),
        )  # fmt: skip

    def condition(self, *, is_outer: bool) -> j.Condition:
        bounds = [(1, 1), (1, 3), (2, 2), (2, 9)] + ([] if is_outer else [(0, 1), (0, 4)])
        return j.Condition(self.choice(TESTS), self.choice(bounds) if self.chance(0.4) else None)


def kind_over(window: a.Window | None) -> s.Kind:
    """Of a table that is aggregated over a window, or over none."""
    if window is None:
        return "table"
    kinds: dict[str, s.Kind] = {"time": "windows", "unlimited": "endless"}
    return kinds.get(window.word, "spans")


def has_store(step: s.Step) -> bool:
    """Whether processors can look into what a step makes."""
    if step.kind != "table":
        return False
    if isinstance(step, a.Aggregated):
        return not step.folding.is_bare
    has_name = isinstance(step, s.OfRows | j.JoinedTables | j.JoinedByField) and step.named
    return has_name or isinstance(step, s.Read | s.AsTable)


METHODS: list[Callable[[Drawing], int | None]] = [
    Drawing.stateless, Drawing.stateless, Drawing.stateless, Drawing.branch, Drawing.merge,
    Drawing.repartition, Drawing.process, Drawing.look_into, Drawing.as_table, Drawing.aggregate,
    Drawing.aggregate,
    Drawing.cogroup, Drawing.rows, Drawing.rows, Drawing.updates, Drawing.final, Drawing.late,
    Drawing.suppress, Drawing.rekey, Drawing.regroup, Drawing.join_streams, Drawing.join_as_of,
    Drawing.look_up, Drawing.look_up, Drawing.look_up_everywhere, Drawing.join_tables,
    Drawing.join_tables, Drawing.join_windows, Drawing.join_by_field, Drawing.match,
]  # fmt: skip


def draw_topology(random: Random) -> Topology:
    return Drawing(random).draw(random.randint(1, 8))


def draw_log(random: Random, topics: Sequence[str], length: int) -> list[tuple[str, Row]]:
    """Records of several topics: ascending, anyhow, or at the edges of windows and graces."""
    return [
        (random.choice(topics), (random.choice(NAMES_OF_KEYS), draw_value(random), time))
        for time in draw_times(random, length)
    ]


def draw_times(random: Random, length: int) -> list[int]:
    times = [random.randrange(END) for _ in range(length)]
    kind = random.choice(["anyhow", "ascending", "nearly", "edges", "edges"])
    if kind == "edges":
        return list(draw_edges(random, length))
    if kind == "ascending":
        return sorted(times)
    if kind == "nearly":
        return [max(0, time + random.randint(-6, 0)) for time in sorted(times)]
    return times


def draw_edges(random: Random, length: int) -> Iterator[int]:
    """Timestamps as far from the newest one as a window and a grace are long, or nearly so."""
    newest = 0
    for _ in range(length):
        away = random.choice(SIZES) + random.choice(GRACES[:4]) + random.choice([-1, 0, 1])
        if random.random() < 0.4:
            newest += away
            yield newest
        else:
            yield max(0, newest - random.choice([0, 0, away]))


def draw_value(random: Random) -> Any:
    if random.random() < 0.12:
        return None
    n = None if random.random() < 0.1 else random.randint(0, 9)
    return {"n": n, "t": random.choice(["x", "y", "x", "y", None])}
