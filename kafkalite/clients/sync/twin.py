"""How a blocking class is made from an asynchronous one, method by method.                 [IO]

    class Admin(Twin[asynchronous.Admin]):
        create_topics = blocking(asynchronous.Admin.create_topics)

The new method has the parameters of the other, its documentation and, awaited, its result: type
checkers and `help` see them, and nothing is written twice. The method is looked up by name at
each call, so derived classes may override it.

Owns   the asynchronous client of each blocking one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from inspect import signature
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast

from kafkalite.clients.lifetime import Lifetime
from kafkalite.clients.sync.loop_thread import loop_thread

A = TypeVar("A", bound=Lifetime)
A_co = TypeVar("A_co", bound=Lifetime, covariant=True)
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Twin(Generic[A_co]):
    """A blocking client. Use it as a context manager, or call `start` and `close`.

    Its methods may be called from several threads. The interpreter's exit closes open clients.
    """

    def __init__(self, make: Callable[[], A_co]) -> None:
        self._thread = loop_thread()

        async def new_client() -> A_co:
            return make()

        self._client = self._thread.run(new_client)

    def start(self) -> None:
        """Makes it ready for use."""

        async def started() -> None:
            await self._client.start()
            self._thread.keep(self._client)

        self._thread.run(started)

    def let_go(self) -> None:
        """Leaves the closing of the client to its caller. Call it in the loop."""
        self._thread.let_go(self._client)

    def read(self, get: Callable[[A_co], T]) -> T:
        """The result of `get` on the client, between two turns of the loop."""

        async def result() -> T:
            return get(self._client)

        return self._thread.run(result)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        async def leave() -> None:
            self.let_go()
            await self._client.__aexit__(kind, error, trace)

        self._thread.run(leave)


def like(
    method: Callable[Concatenate[Any, P], Any],
) -> Callable[[Callable[..., R]], Callable[Concatenate[Any, P], R]]:
    """Gives a function written by hand the parameters of `method`."""

    def decorate(function: Callable[..., R]) -> Callable[Concatenate[Any, P], R]:
        result = signature(function).return_annotation
        vars(function)["__signature__"] = signature(method).replace(return_annotation=result)
        return cast("Callable[Concatenate[Any, P], R]", function)

    return decorate


def made_like(
    make: Callable[P, A],
) -> Callable[[Callable[[Any], None]], Callable[Concatenate[Any, P], None]]:
    """The `__init__` of a twin: the asynchronous client is made of the same arguments."""

    def decorate(_: Callable[[Any], None]) -> Callable[Concatenate[Any, P], None]:
        def init(self: Twin[A], *args: P.args, **kwargs: P.kwargs) -> None:
            Twin.__init__(self, lambda: make(*args, **kwargs))

        return cast("Callable[Concatenate[Any, P], None]", wraps(make.__init__)(init))

    return decorate


def blocking(
    method: Callable[Concatenate[A, P], Awaitable[R]],
) -> Callable[Concatenate[Twin[A], P], R]:
    """The blocking twin of a coroutine function."""

    async def end(_: Twin[A], result: Awaitable[R]) -> R:
        return await result

    return _in_the_loop(method, end)


def closing(
    method: Callable[Concatenate[A, P], Awaitable[R]],
) -> Callable[Concatenate[Twin[A], P], R]:
    """The blocking twin of `close`: nothing is left to do for this client at the exit."""

    async def end(twin: Twin[A], result: Awaitable[R]) -> R:
        twin.let_go()
        return await result

    return _in_the_loop(method, end)


def immediate(
    method: Callable[Concatenate[A, P], R],
) -> Callable[Concatenate[Twin[A], P], R]:
    """The twin of a method that waits for nothing. It too runs in the loop, as all else there."""

    async def end(_: Twin[A], result: R) -> R:
        return result

    return _in_the_loop(method, end)


def _in_the_loop(
    method: Callable[Concatenate[A, P], T], end: Callable[[Twin[A], T], Coroutine[Any, Any, R]]
) -> Callable[Concatenate[Twin[A], P], R]:
    """Calls the client's method of that name in the loop, and `end` with its result."""
    name = method.__name__

    @wraps(method)
    def call(self: Twin[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        async def work() -> R:
            return await end(self, getattr(self._client, name)(*args, **kwargs))

        return self._thread.run(work)

    return call
