"""A topology while it is built: its nodes so far, their names, who reads which topic.       [P]

Streams make tables, tables make groups and streams: a draft makes the objects for all of them, so
that their modules do not import one another.

Owns   the rule that a topic has one reader within a topology.
Fails  with TopologyError, which names the operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar

from kafkalite.errors import TopologyError
from kafkalite.serde.serde import Serde
from kafkalite.streams import plan as p
from kafkalite.streams.blame import line_of_caller
from kafkalite.streams.durations import Duration, positive
from kafkalite.streams.expressions.check import UNKNOWN, Shape
from kafkalite.streams.functions import CallableFunction
from kafkalite.streams.hints import no_such
from kafkalite.streams.naming import Names, check_name
from kafkalite.streams.processors import StoreSpec
from kafkalite.streams.shapes import shape_of

if TYPE_CHECKING:
    from kafkalite.streams.groups import Grouped
    from kafkalite.streams.stream import Stream
    from kafkalite.streams.table import Table

N = TypeVar("N", bound=p.Node)
# Operators that change the key, or may own a store or an internal topic: see naming.py.
ANCHORS: Final = (
    p.SelectKey, p.MapPairs, p.MapBatch, p.GroupBy, p.TableGroupBy, p.Repartition,
    p.Source, p.Aggregate, p.ToTable, p.Process, p.JoinOfStreams,
    p.Suppress, p.FinalRows, p.Cogroup,
    p.Pattern,
    p.StreamTableJoin, p.TableJoin, p.ForeignJoin,
)  # fmt: skip
ON_ERROR: Final = ("fail", "skip", "dlq")


class NotBuilt:
    """Mixed into the builder's classes: a name that is missing says why, or what to use instead.

    `not_built` are names of the API that this version lacks, `hints` words of other libraries.
    """

    not_built: ClassVar[frozenset[str]] = frozenset()
    hints: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            if name in self.not_built:
                raise TopologyError(f"{type(self).__name__}.{name} is not supported yet")
            if name.startswith("_"):  # asked for by Python itself
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise AttributeError(no_such(type(self).__name__, name, self.hints, dir(type(self))))


class Faces(NamedTuple):
    """The classes that users build with. Each makes objects of the others without an import."""

    stream: type[Stream]
    grouped: type[Grouped]
    table: type[Table]


class Draft:
    """The nodes of one topology under construction, shared by all its streams and tables."""

    def __init__(self, faces: Faces, *, has_dead_letters: bool) -> None:
        self._faces = faces
        self.nodes: list[p.Node] = []
        self.shapes: dict[p.Node, Shape] = {}  # what is known of each node's output
        self._has_dead_letters = has_dead_letters
        self._names = Names()
        self._readers: dict[str | p.TopicPattern, p.Source] = {}  # who reads a topic, or pattern
        self.stores: dict[str, StoreSpec] = {}  # of processors, by name

    def add(self, node: N) -> N:
        """Takes `node` into the topology, with the line of the user's that made it."""
        node = replace(node, made_at=line_of_caller())
        self.nodes.append(node)
        inputs = (node.parent.parent,) if isinstance(node, p.Late) else node.parents
        self.shapes[node] = shape_of(node, [self.shapes[each] for each in inputs])
        return node

    def below(
        self,
        word: str,
        kind: type[N],
        parent: p.Node,
        name: str | None,
        on_error: p.OnError | None = None,
        *,
        others: tuple[p.Node, ...] = (),
        **fields: Any,
    ) -> N:
        """Takes in a node below `parent` and perhaps others; `word` is the user's method."""
        policy = self.policy(on_error, operator_of(word, name, parent))
        called = self.name(word, kind, parent, name)
        return self.add(kind(name=called, parents=(parent, *others), on_error=policy, **fields))

    def shape_of_sides(self, left: p.Node, right: p.Node) -> Shape:
        """The shape of the values that a join gives to its function."""
        one, other = (self.shapes.get(each, UNKNOWN) for each in (left, right))
        return Shape(key=one.key, left=one.value, right=other.value)

    def stream(self, node: p.Node) -> Stream:
        """The stream of the records that `node` puts out."""
        return self._faces.stream(self, node)

    def grouped(self, node: p.Node, *, subtracts: bool = False) -> Grouped:
        """The groups that `node` makes; those of a table take out old rows."""
        return self._faces.grouped(self, node, subtracts=subtracts)

    def table(self, node: p.Node) -> Table:
        """The table of the rows that `node` puts out."""
        return self._faces.table(self, node)

    def read(self, source: p.Source, operator: str) -> p.Source:
        """Takes a source in. The same source once more is the one that is there."""
        topics = source.topics if source.pattern is None else (source.pattern,)
        for topic in topics:
            reader = self._readers.get(topic)
            if reader is None:
                continue
            if _identity(reader) == _identity(source):
                return reader
            raise TopologyError(
                f"{operator}: {topic!r} is read by {reader.name!r} already, in another way; "
                "a topic has one reader, from which several streams can be built"
            )
        added = self.add(source)
        self._readers.update(dict.fromkeys(topics, added))
        return added

    def name(
        self, operator: str, kind: type[p.Node], above: p.Node | None, given: str | None
    ) -> str:
        """The name of a new operator: the given one, or one derived from its place."""
        if given is not None:
            return self._names.give(given, operator)
        if above is not None and issubclass(kind, ANCHORS):
            above = self._anchor(above)
        return self._names.derive(operator, None if above is None else above.name)

    def _anchor(self, node: p.Node) -> p.Node:
        """`node`, or the nearest operator above it that is an anchor or that a user named."""
        while not isinstance(node, ANCHORS) and not self._names.is_given(node.name):
            if isinstance(node, p.BranchArm) and self._names.is_given(node.parent.name):
                return node
            node = node.parents[0]
        return node

    @property
    def numbered_names(self) -> tuple[tuple[str, ...], ...]:
        """Names that only the order in which operators were made tells apart."""
        return self._names.numbered()

    def policy(self, on_error: p.OnError | None, operator: str) -> p.OnError | None:
        """`on_error` once it is known to be possible."""
        if on_error is not None and on_error not in ON_ERROR:
            raise TopologyError(f"{operator}: on_error is one of {ON_ERROR}, got {on_error!r}")
        if on_error == "dlq" and not self._has_dead_letters:
            raise TopologyError(
                f'{operator}: on_error="dlq" needs a dead_letter_topic= of the application'
            )
        return on_error


def operator_of(word: str, name: str | None, above: p.Node) -> str:
    """How an error calls an operator that has no node yet."""
    return f"{word} {name!r}" if name else f"{word} of {above.name!r}"


def serde_or_none(serde: Any, what: str, operator: str) -> Serde | None:
    """`serde` once it is known to be one. A common slip is `string` for `string()`."""
    if serde is None or (hasattr(serde, "open") and not isinstance(serde, type)):
        checked: Serde | None = serde
        return checked
    is_maker = callable(serde) and not isinstance(serde, type)
    hint = f"; did you mean {getattr(serde, '__name__', serde)}()?" if is_maker else ""
    raise TopologyError(f"{operator}: {what} expected a serde, got {serde!r}{hint}")


def how_of(how: object, allowed: tuple[p.How, ...], operator: str) -> p.How:
    """`how` once it is known to be a kind of join that `operator` has."""
    for each in allowed:
        if how == each:
            return each
    raise TopologyError(f"{operator}: how is one of {allowed}, got {how!r}")


def topics_of(topics: object, operator: str) -> tuple[str, ...]:
    """The names of one topic or several."""
    listed = (topics,) if isinstance(topics, str) else topics
    if not isinstance(listed, Sequence) or not listed:
        raise TopologyError(f"{operator}: expected a topic, several topics or a compiled pattern")
    if len(set(listed)) < len(listed):
        raise TopologyError(f"{operator}: a topic is named twice")
    return tuple(check_name(topic, f"{operator}: topic") for topic in listed)


def history_ms(history: Duration | None, operator: str) -> int | None:
    """How far back a table is versioned."""
    return None if history is None else positive(history, f"{operator}: history")


def _identity(source: p.Source) -> tuple[Any, ...]:
    """What makes two sources the same, names and places apart."""
    apart = ("name", "made_at")
    values = [getattr(source, f.name) for f in fields(source) if f.name not in apart]
    parts = (
        (v.passes, v.field or v.call) if isinstance(v, CallableFunction) else v for v in values
    )
    return (type(source), *parts)
