"""Async functions over a stream: lookups over a network, many at a time.                  [P]

Fails  with TopologyError, which names the operator, where the mistake stands.
Source Flink's AsyncDataStream (ordered and unordered results, capacity, timeout).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, Required, Unpack, overload

from kafkalite.core.generics import K_co, R, V_co
from kafkalite.errors import TopologyError
from kafkalite.streams import plan as p
from kafkalite.streams.call_limits import CallOptions, limits_of
from kafkalite.streams.draft import Draft, operator_of
from kafkalite.streams.functions import CallableFunction, Passes, check_arguments, check_async
from kafkalite.streams.options import Named, Options, check_options
from kafkalite.streams.record import Record

if TYPE_CHECKING:
    from kafkalite.streams.stream import Stream


class AsyncNamed(Named, CallOptions):
    """What `map_async` takes beside its function."""


class AsyncWithKey(AsyncNamed):
    """The same, for a function of key and value."""

    with_key: Required[Literal[True]]


class AsyncWithRecord(AsyncNamed):
    """The same, for a function of the whole record."""

    with_record: Required[Literal[True]]


class AsyncOptions(Options, CallOptions):
    """The same, as it is implemented."""


class Asynchronous(Generic[K_co, V_co]):
    """Mixed into Stream."""

    _draft: Draft
    _node: p.Node

    @overload
    def map_async(
        self,
        function: Callable[[V_co], Awaitable[R]],
        *,
        ordered: bool = True,
        **options: Unpack[AsyncNamed],
    ) -> Stream[K_co, R]: ...
    @overload
    def map_async(
        self,
        function: Callable[[K_co, V_co], Awaitable[R]],
        *,
        ordered: bool = True,
        **options: Unpack[AsyncWithKey],
    ) -> Stream[K_co, R]: ...
    @overload
    def map_async(
        self,
        function: Callable[[Record[K_co, V_co]], Awaitable[R]],
        *,
        ordered: bool = True,
        **options: Unpack[AsyncWithRecord],
    ) -> Stream[K_co, R]: ...
    def map_async(
        self,
        function: Callable[..., Awaitable[Any]],
        *,
        ordered: bool = True,
        **options: Unpack[AsyncOptions],
    ) -> Stream:
        """Maps each value by an async function; the key stays.

        At most `concurrency` calls (100) of a task run at once. A try that takes longer than
        `timeout` ("10s") has failed; a failed call is tried `retries` times more (0), after
        `backoff` ("100ms"), then twice as long, up to 10 s. Records leave in their order; with
        `ordered=False` as soon as they are done, those of one key in their order. Nothing is
        committed before the calls of all records that were read have ended.
        """
        operator = operator_of("map_async", options.get("name"), self._node)
        check_options(operator, options, AsyncOptions)
        if type(ordered) is not bool:
            raise TopologyError(f"{operator}: ordered is True or False, got {ordered!r}")
        node = self._draft.below(
            "map_async",
            p.MapAsync,
            self._node,
            options.get("name"),
            options.get("on_error"),
            function=_async_function(function, operator, options),
            limits=limits_of(options, operator),
            ordered=ordered,
        )
        return self._draft.stream(node)


def _async_function(given: object, operator: str, options: AsyncOptions) -> CallableFunction:
    """An async function as plan data."""
    with_key, with_record = options.get("with_key", False), options.get("with_record", False)
    if with_key and with_record:
        raise TopologyError(f"{operator}: with_key and with_record exclude each other")
    passes = Passes.KEY_AND_VALUE if with_key else Passes.RECORD if with_record else Passes.VALUE
    call = check_async(given, operator)
    hint = "" if with_key or with_record else "; with_key=True passes key and value"
    check_arguments(call, 2 if with_key else 1, operator, f"{passes.value}{hint}", is_awaited=True)
    return CallableFunction(call, passes)
