"""Processors as operators of a stream: `process` and `process_values`.                    [P]

Fails  with TopologyError, which names the operator, where the mistake stands.
Source Kafka Streams' KStream.process, KStream.processValues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic

from kafkalite.core.generics import K, K_co, V, V_co
from kafkalite.core.nearest import did_you_mean
from kafkalite.errors import TopologyError
from kafkalite.streams import plan as p
from kafkalite.streams.draft import Draft, operator_of
from kafkalite.streams.functions import check_arguments
from kafkalite.streams.processors import Processor, StoreSpec

if TYPE_CHECKING:
    from kafkalite.streams.stream import Stream

Stores = Iterable[StoreSpec | str]


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

        `stores` are those that it asks its context for: what `store()` returns, or the name of one
        that another processor brought in. The key counts as changed.
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
        """As `process`, for a processor that keeps the key: nothing below is repartitioned.

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
        specs = _connected(stores, self._draft.stores, operator)
        node = self._draft.below(
            word, kind, self._node, name, on_error, make=processor, stores=specs
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


def _connected(stores: Stores, known: dict[str, StoreSpec], operator: str) -> tuple[StoreSpec, ...]:
    """The stores of one processor, once they are known to be of one mind with those of others."""
    if isinstance(stores, str | StoreSpec) or not isinstance(stores, Iterable):
        raise TopologyError(f"{operator}: stores= expected a list of stores, got {stores!r}")
    specs: dict[str, StoreSpec] = {}
    for given in stores:
        spec = known.get(given) if isinstance(given, str) else given
        if spec is None:
            hint = did_you_mean(str(given), known) or f"; there are {sorted(known) or 'none yet'}"
            raise TopologyError(f"{operator}: no processor above has a store {given!r}{hint}")
        if not isinstance(spec, StoreSpec):
            raise TopologyError(f"{operator}: stores= expected store(…) or a name, got {spec!r}")
        if known.setdefault(spec.name, spec) != spec:
            raise TopologyError(
                f"{operator}: store {spec.name!r} is described in another way already: use one "
                "store(…) for all its processors, or name it"
            )
        specs[spec.name] = spec
    return tuple(specs.values())
