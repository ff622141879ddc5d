"""Processors as operators of a stream: `process` and `process_values`.                    [P]

Fails  with TopologyError, which names the operator, where the mistake stands.
Source Kafka Streams' KStream.process, KStream.processValues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Generic

from kafkalite.core.generics import K, K_co, V, V_co
from kafkalite.core.nearest import did_you_mean
from kafkalite.errors import TopologyError
from kafkalite.streams import plan as p
from kafkalite.streams.draft import Draft, operator_of
from kafkalite.streams.functions import check_arguments
from kafkalite.streams.processors import Processor, StoreSpec

if TYPE_CHECKING:
    from kafkalite.streams.stream import Stream
    from kafkalite.streams.table import Table

Stores = Iterable["StoreSpec | Table | str"]
OWNERS: Final = (p.Aggregate, p.TableSource, p.ToTable)  # tables that have a store when it is read


class Processing(Generic[K_co, V_co]):
    """Mixed into Stream."""

    _draft: Draft
    _node: p.Node

    def process(
        self,
        processor: Callable[[], Processor[K_co, V_co, K, V]],
        stores: Stores = (),
        *,
        name: str | None = None,
        on_error: p.OnError | None = None,
    ) -> Stream[K, V]:
        """Records through a processor: a class, or a function that makes one for each task.

        `stores` are those that it asks its context for: what `store()` returns, the name of one
        that another processor brought in, or a table, by itself or its name, to look into. Where
        the key has changed, records go to the rows of their keys through a topic then. The key of
        what leaves counts as changed.
        """
        return self._process("process", p.Process, processor, stores, name, on_error)

    def process_values(
        self,
        processor: Callable[[], Processor[K_co, V_co, K_co, V]],
        stores: Stores = (),
        *,
        name: str | None = None,
        on_error: p.OnError | None = None,
    ) -> Stream[K_co, V]:
        """As `process`, for a processor that keeps the key, so that no repartition is needed.

        A record that it forwards under another key than that of the record at hand is an error.
        """
        return self._process("process_values", p.ProcessValues, processor, stores, name, on_error)

    def _process(
        self,
        word: str,
        kind: type[p.Process],
        processor: Callable[[], Any],
        stores: Stores,
        name: str | None,
        on_error: p.OnError | None,
    ) -> Stream:
        operator = operator_of(word, name, self._node)
        _check_processor(processor, operator)
        specs, tables = _connected(stores, self._draft, operator)
        node = self._draft.below(
            word, kind, self._node, name, on_error, others=tables, make=processor, stores=specs
        )
        return self._draft.stream(node)


def _check_processor(processor: object, operator: str) -> None:
    """TopologyError unless it makes processors, as far as can be seen without calling it."""
    if not callable(processor):
        hint = ""
        if hasattr(processor, "process"):
            made = type(processor).__name__
            hint = f" object: every task needs one of its own, so pass {made} or lambda: {made}(…)"
        raise TopologyError(
            f"{operator}: expected a processor's class or a function that makes a processor, got "
            f"{type(processor).__name__}{hint}"
        )
    if isinstance(processor, type):
        method = getattr(processor, "process", None)
        if method is None or method is Processor.process:
            raise TopologyError(f"{operator}: {processor.__name__} has no method process(record)")
        check_arguments(method, 2, f"{operator}: {processor.__name__}.process", "the record")
    check_arguments(processor, 0, operator, "nothing")


def _connected(
    stores: Stores, draft: Draft, operator: str
) -> tuple[tuple[StoreSpec, ...], tuple[p.Node, ...]]:
    """The stores of one processor, and the tables into which it looks."""
    if isinstance(stores, str | StoreSpec) or not isinstance(stores, Iterable):
        raise TopologyError(f"{operator}: stores= expected a list of stores, got {stores!r}")
    specs: dict[str, StoreSpec] = {}
    tables: dict[str, p.Node] = {}
    for given in stores:
        if isinstance(given, StoreSpec):
            specs[given.name] = _agreed(given, draft.stores, operator)
        elif isinstance(given, str) and given in draft.stores:
            specs[given] = draft.stores[given]
        else:
            table = _table(given, draft, operator)
            tables[table.name] = table
    if twice := sorted(specs.keys() & tables.keys()):
        raise TopologyError(f"{operator}: {twice[0]!r} is a store and a table: rename one")
    return tuple(specs.values()), tuple(tables.values())


def _agreed(spec: StoreSpec, known: dict[str, StoreSpec], operator: str) -> StoreSpec:
    """A store, once it is known to be described as other processors describe it."""
    if known.setdefault(spec.name, spec) != spec:
        raise TopologyError(
            f"{operator}: store {spec.name!r} is described in another way already: use one "
            "store(…) for all its processors, or name it"
        )
    return spec


def _table(given: object, draft: Draft, operator: str) -> p.Node:
    """A table with a store, which was given by itself or by its name."""
    tables = {node.name: node for node in draft.nodes if isinstance(node, p.Table)}
    node = tables.get(given) if isinstance(given, str) else getattr(given, "_node", None)
    if isinstance(given, str) and node is None:
        known = sorted({*draft.stores, *tables})
        hint = did_you_mean(given, known) or f"; there are {known or 'none yet'}"
        raise TopologyError(f"{operator}: there is no store and no table {given!r} above{hint}")
    if not isinstance(node, p.Node) or node not in tables.values():
        raise TopologyError(f"{operator}: stores= expected store(…), a table or a name of one, got "
                            f"{given!r}")  # fmt: skip
    if not isinstance(node, OWNERS) and not getattr(node, "named", False):
        raise TopologyError(f"{operator}: the table {node.name!r} has no store: give it a name=")
    return node
