"""The fingerprint of a topology: what its state and its internal topics depend on.        [P]

An application keeps its fingerprint in its log. When it starts with another one, `compare` says
which of the changes the state there is survives:

    survives    operators without state, new branches, another grace, a store or topic that went
    does not    another window, aggregate or serde under one name; inputs that went; a store or
                repartition topic that only has another name; names that their order tells apart

Functions cannot be compared. Names of fields and expressions are; what a lambda does is not seen.

Owns   the form in which a fingerprint is kept (JSON), and the words for each difference.
Fails  with ValueError for text that is no fingerprint.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from kafkalite.streams import plan as p
from kafkalite.streams.combining import shape_of
from kafkalite.streams.describe import detail, kind, within
from kafkalite.streams.durations import spell
from kafkalite.streams.rewrites import SubTopology
from kafkalite.streams.stores import Store

VERSION: Final = 1
ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")  # in the repr of an object without one of its own
UNKNOWN: Final = "f"  # how an aggregate spells an argument that is a function


@dataclass(frozen=True, slots=True)
class StorePrint:
    """One store: what its rows are, and what leads to them."""

    rows: Mapping[str, str]  # each field's aggregate; an unnamed one has the name ""
    key: str
    value: str
    window: str | None = None  # without its grace, which changes no row that there is
    inputs: tuple[str, ...] = ()  # the topics that its sub-topology reads for it
    sources: tuple[str, ...] = ()  # the topics of others that lead to it in the end
    path: str = ""  # the operators above
    is_numbered: bool = False  # whether only the order of operators gave it its name

    @property
    def shape(self) -> tuple[object, ...]:
        """What two stores have in common that may be one under two names."""
        return (self.rows, self.key, self.value, self.window)


@dataclass(frozen=True, slots=True)
class RepartitionPrint:
    """One repartition topic: what its records are."""

    key: str
    value: str
    partitions: int | None = None
    by: str | None = None  # the field or expression that is the key, where it is one
    path: str = ""
    is_numbered: bool = False
    folds: str | None = None  # the table whose partials it may hold

    @property
    def shape(self) -> tuple[object, ...]:
        """What two topics have in common that may be one under two names."""
        return (self.key, self.value, self.by)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A topology as far as its state depends on it."""

    stores: Mapping[str, StorePrint] = field(default_factory=dict)
    repartitions: Mapping[str, RepartitionPrint] = field(default_factory=dict)  # by operator
    reads: tuple[str, ...] = ()  # every topic that a worker subscribes to

    def encode(self) -> str:
        """As text; equal fingerprints have equal texts."""
        return json.dumps({"version": VERSION, **asdict(self)}, sort_keys=True)

    @classmethod
    def decode(cls, text: str) -> Fingerprint:
        """The fingerprint that `encode` wrote."""
        try:
            found = json.loads(text)
            if found["version"] != VERSION:
                raise ValueError(f"version {found['version']!r}, expected {VERSION}")
            return cls(
                {n: StorePrint(**_tuples(s)) for n, s in found["stores"].items()},
                {n: RepartitionPrint(**s) for n, s in found["repartitions"].items()},
                tuple(found["reads"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no fingerprint: {type(error).__name__}: {error}") from error


def _tuples(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in entry.items()}


@dataclass(frozen=True, slots=True)
class Difference:
    """What changed: `refusals` the state does not survive, `notes` it does."""

    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    new_stores: tuple[str, ...] = ()
    gone_repartitions: tuple[str, ...] = ()
    refolded: tuple[str, ...] = ()  # repartitions whose rows are for another table, or none
    unreadable: tuple[str, ...] = ()  # those of them where such rows may stand


# Taking one


def fingerprint(plan: p.Plan, subs: Iterable[SubTopology]) -> Fingerprint:
    """The fingerprint of `plan`; `subs` are its sub-topologies."""
    subs = tuple(subs)
    feeds = _feeds(subs)
    chains = {node.name: _chain(node) for node in plan.nodes}
    paths = {name: _path(chain) for name, chain in chains.items()}
    several = {name for names in plan.numbered_names for name in names}
    numbered = {n for n, chain in chains.items() if any(node.name in several for node in chain)}
    stores, repartitions = {}, {}
    for sub in subs:
        for store in sub.stores:
            node = store.node
            inputs = set[str]().union(*map(_inputs, store.nodes))
            stores[store.name] = StorePrint(
                rows=_rows(store),
                key=_text(store.key),
                value=_text(store.value),
                window=_window(store),
                inputs=tuple(sorted(inputs)),
                sources=tuple(sorted(_ultimate(inputs, feeds))),
                path=paths.get(node.name, ""),
                is_numbered=store.spec is None and node.name in numbered,
            )
        for node in sub.sinks:
            if node.topic in sub.repartition_sinks:
                name = node.name.removesuffix("-sink")
                repartitions[name] = RepartitionPrint(
                    key=_text(node.key),
                    value=_text(node.value),
                    partitions=_asked_partitions(subs, str(node.topic)),
                    by=_field(node.parent),
                    path=paths.get(name, ""),
                    is_numbered=name in numbered,
                    folds=_folds(subs, str(node.topic)),
                )
    reads = {name for sub in subs for source in sub.sources for name in _topics(source)}
    return Fingerprint(stores, repartitions, tuple(sorted(reads)))


def _text(serde: object) -> str:
    return ADDRESS.sub("", repr(serde))


def _rows(store: Store) -> dict[str, str]:
    node = store.node
    if isinstance(node, p.JoinOfStreams):
        return {"": f"{store.word} side of a join"}
    if isinstance(node, p.Cogroup):
        return {"": "times of inputs"}
    if isinstance(node, p.Suppress | p.FinalRows):
        return {"": "held back"}
    if isinstance(node, p.Pattern):
        return {s.name: "matched in a list" if s.repeats else "matched" for s in node.steps}
    if isinstance(node, p.StreamTableJoin):
        return {"": "waiting records"}
    if isinstance(node, p.Expire):
        return {"": "times of updates"}
    if isinstance(node, p.TableSource | p.ToTable) and node.history_ms is not None:
        return {"": "versions"}
    if not isinstance(node, p.Aggregate):
        return {"": "latest"}
    names = node.fields or ("",)
    return {name: str(part) for name, part in zip(names, node.aggregates, strict=True)}


def _window(store: Store) -> str | None:
    node = store.node
    window: object = None
    if store.spec is not None:
        kept = store.spec.retention_ms
        window = None if kept is None else f"retention={spell(kept)}"
    elif isinstance(node, p.JoinOfStreams):
        window = within(node)
    elif isinstance(node, p.Aggregate):
        window = node.window
    return None if window is None else re.sub(r", grace=\w+", "", str(window))


def _field(node: p.Node) -> str | None:
    function = node.select if isinstance(node, p.Reference) else getattr(node, "function", None)
    return getattr(function, "known", None)


def _asked_partitions(subs: Iterable[SubTopology], topic: str) -> int | None:
    made = (t for sub in subs for t in sub.repartition_sources if t.name == topic)
    return next((t.partitions for t in made), None)


def _folds(subs: Iterable[SubTopology], topic: str) -> str | None:
    readers = (source for sub in subs for source in sub.sources if topic in source.topics)
    return next((shape_of(r.folds) for r in readers if r.folds is not None), None)


def _topics(source: p.Source) -> tuple[str, ...]:
    return source.topics or (f"/{source.pattern.pattern if source.pattern else ''}/",)


def _inputs(node: p.Node) -> set[str]:
    """The topics of the sources above `node`."""
    found, todo = set[str](), [node]
    seen = set(todo)
    while todo:
        above = todo.pop()
        if isinstance(above, p.Source):
            found.update(_topics(above))
        new = set(above.parents) - seen
        seen |= new
        todo += new
    return found


def _feeds(subs: Iterable[SubTopology]) -> dict[str, set[str]]:
    """The topics that lead to each repartition topic."""
    return {
        str(sink.topic): _inputs(sink)
        for sub in subs
        for sink in sub.sinks
        if sink.topic in sub.repartition_sinks
    }


def _ultimate(topics: set[str], feeds: Mapping[str, set[str]]) -> set[str]:
    """The topics of others that lead to `topics`, through any number of repartition topics."""
    seen, todo = set(topics), list(topics)
    while todo:
        new = feeds.get(todo.pop(), set()) - seen
        seen |= new
        todo += new
    return seen - feeds.keys()


def _chain(node: p.Node) -> list[p.Node]:
    """`node` and the operators above it, by their first parents, the source left out."""
    chain = []
    while node.parents:
        chain.append(node)
        node = node.parents[0]
    return chain


def _path(chain: Iterable[p.Node]) -> str:
    """What operators do, the upper ones first."""
    return " > ".join(f"{kind(node)}({_detail(node)})" for node in reversed(list(chain)[1:]))


def _detail(node: p.Node) -> str:
    return ADDRESS.sub("", detail(node))


# Comparing two


def compare(before: Fingerprint, now: Fingerprint) -> Difference:
    """What changed between two topologies of one application."""
    refusals = [
        *_shuffled(before, now),
        *(
            f"store {name!r}: {words}"
            for name, store in now.stores.items()
            if name in before.stores
            for words in _changes_of_store(before.stores[name], store)
        ),
        *(
            f"repartition topic of {name!r}: {words}"
            for name, topic in now.repartitions.items()
            if name in before.repartitions
            for words in _changes_of_topic(before.repartitions[name], topic)
        ),
        *_renamed("store", before.stores, now.stores),
        *_renamed("repartition topic of", before.repartitions, now.repartitions),
    ]
    new_stores = tuple(name for name in now.stores if name not in before.stores)
    gone = tuple(name for name in before.stores if name not in now.stores)
    notes = [
        f"store {name!r} is new: it begins empty, where the inputs go on" for name in new_stores
    ]
    notes += [f"store {name!r} is no longer kept" for name in gone]
    refolded = tuple(
        name
        for name, topic in now.repartitions.items()
        if name in before.repartitions and before.repartitions[name].folds != topic.folds
    )
    return Difference(
        tuple(refusals),
        tuple(notes),
        new_stores,
        tuple(name for name in before.repartitions if name not in now.repartitions),
        refolded,
        tuple(name for name in refolded if before.repartitions[name].folds is not None),
    )


def _changes_of_store(old: StorePrint, new: StorePrint) -> Iterable[str]:
    for what in ("window", "key", "value"):
        was, now = getattr(old, what), getattr(new, what)
        if was != now:
            serde = "" if what == "window" else "'s serde"
            yield f"its {what}{serde} was {was or 'none'} and is {now or 'none'} now"
    if old.rows.keys() != new.rows.keys():
        yield f"its rows were {_spell_rows(old.rows)} and are {_spell_rows(new.rows)} now"
    else:
        for name, was in old.rows.items():
            if not _may_be_one(was, new.rows[name]):
                its = f"{name}=" if name else ""
                yield f"its rows were {its}{was} and are {its}{new.rows[name]} now"
    for topic in old.sources:
        if topic not in new.sources:
            yield f"{topic!r}, whose records it holds, no longer leads to it"
    if set(old.sources) <= set(new.sources):
        for topic in old.inputs:
            if topic not in new.inputs:
                yield f"it was fed by {topic!r} and is fed by {_spell(new.inputs)} now"


def _changes_of_topic(old: RepartitionPrint, new: RepartitionPrint) -> Iterable[str]:
    for what in ("key", "value"):
        was, now = getattr(old, what), getattr(new, what)
        if was != now:
            yield f"its {what}'s serde was {was} and is {now} now"
    if old.by != new.by and None not in (old.by, new.by):
        yield f"its key was {old.by!r} and is {new.by!r} now"
    if old.partitions != new.partitions:
        was, now = old.partitions or "not said", new.partitions or "not said"
        yield f"its number of partitions was {was} and is {now} now"


def _may_be_one(was: str, now: str) -> bool:
    """Whether two aggregates may be the same: functions cannot be compared."""
    if was == now:
        return True
    both = [text.partition("(") for text in (was, now)]
    words = {word for word, _, _ in both}
    return len(words) == 1 and f"{UNKNOWN})" in {rest for _, _, rest in both}


def _renamed(what: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterable[str]:
    """Entries that went while one alike came: most likely one under another name."""
    come = {name: entry for name, entry in now.items() if name not in before}
    for name, entry in before.items():
        if name in now:
            continue
        alike = next((new for new, found in come.items() if found.shape == entry.shape), None)
        if alike is not None:
            del come[alike]
            yield (
                f"{what} {name!r} is gone and {alike!r} is alike, which would begin empty "
                f"(name={name!r} keeps it)"
            )


def _shuffled(before: Fingerprint, now: Fingerprint) -> Iterable[str]:
    """Entries whose names only their order tells apart, where that may have changed."""
    for old, new in ((before.stores, now.stores), (before.repartitions, now.repartitions)):
        for name, entry in new.items():
            was = old.get(name)
            if was is None or was.path == entry.path:
                continue
            if was.is_numbered or entry.is_numbered:
                yield (
                    f"{name!r} stood below {was.path or 'its topic'} and stands below "
                    f"{entry.path or 'its topic'} now; only their order tells operators of this "
                    "name apart, so name= each"
                )


def _spell_rows(rows: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={part}" if name else part for name, part in rows.items())


def _spell(topics: Iterable[str]) -> str:
    return ", ".join(map(repr, topics)) or "nothing"
