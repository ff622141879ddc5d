"""The interfaces of processors: their methods, context and stores.                         [P]

    class Changes(Processor[str, int, str, int]):
        def init(self, context):
            self.context = context
            self.latest = context.store("latest")
            context.schedule("1m", "stream_time", self.report)

        def process(self, record):
            if self.latest.get(record.key) != record.value:
                self.latest.put(record.key, record.value)
                self.context.forward(record)

    changes = readings.process(Changes, stores=[store("latest", key=string(), value=int64())])

A processor is any object with `process`; the base class makes `init` and `close` optional. What it
may call are protocols here; engines have the objects.

Owns   the description of a store, as a plan holds it.
Fails  with TopologyError for a store that cannot be.
Source Kafka Streams' Processor, ProcessorContext, KeyValueStore, WindowStore.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, overload

from kafkalite.errors import TopologyError
from kafkalite.serde.serde import Serde
from kafkalite.streams.durations import Duration, positive, spell
from kafkalite.streams.naming import check_name
from kafkalite.streams.record import Record

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    K_contra = TypeVar("K_contra", contravariant=True, default=Any)
    V_contra = TypeVar("V_contra", contravariant=True, default=Any)
    K2_co = TypeVar("K2_co", covariant=True, default=Any)
    V2_co = TypeVar("V2_co", covariant=True, default=Any)
    K2_contra = TypeVar("K2_contra", contravariant=True, default=Any)
    V2_contra = TypeVar("V2_contra", contravariant=True, default=Any)
    K = TypeVar("K", default=Any)
    V = TypeVar("V", default=Any)
    S_co = TypeVar("S_co", covariant=True, default=Any)
    S = TypeVar("S", default=Any)
else:
    from typing import TypeVar

    K_contra, V_contra, K2_contra, V2_contra = (
        TypeVar(name, contravariant=True)
        for name in ("K_contra", "V_contra", "K2_contra", "V2_contra")
    )
    K2_co, V2_co, S_co = (TypeVar(name, covariant=True) for name in ("K2_co", "V2_co", "S_co"))
    K, V, S = map(TypeVar, "KVS")

Clock = Literal["stream_time", "wall_clock"]


class Timer(Protocol):
    """A timer, returned by `context.schedule`."""

    def cancel(self) -> None:
        """The function is called no more."""


class KeyValueStore(Protocol[K, V]):
    """A store without `retention`: one value per key. Keys are in the order of their bytes."""

    def get(self, key: K) -> V | None:
        """The value of a key, None when there is none."""

    def put(self, key: K, value: V | None) -> None:
        """Sets or replaces a value; None deletes."""

    def delete(self, key: K) -> V | None:
        """Deletes a value and returns it."""

    def range(
        self, start: K | None = None, end: K | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[K, V]]:
        """The pairs with keys from `start` to `end`, both included; None: no bound."""

    def all(self) -> Iterator[tuple[K, V]]:
        """Every pair."""

    def __len__(self) -> int:
        """How many keys there are."""


class WindowStore(Protocol[K, V]):
    """A store with `retention`: values of a key by timestamp.

    A value is there as long as the newest timestamp of the store is less than `retention` later.
    """

    def put(self, key: K, value: V | None, timestamp: int) -> None:
        """Puts a value, whatever there was at that time; None deletes. One that is too old is
        dropped and counted."""

    def get(self, key: K, timestamp: int) -> V | None:
        """The value of a key at exactly that time."""

    def fetch(self, key: K, start: int, end: int) -> Iterator[tuple[int, V]]:
        """The (timestamp, value) pairs of a key from `start` to `end`, both included."""

    def all(self) -> Iterator[tuple[tuple[K, int], V]]:
        """Every ((key, timestamp), value), in the order of keys and times."""

    def __len__(self) -> int:
        """How many values there are."""


@dataclass(frozen=True, slots=True)
class StoreSpec(Generic[S_co]):
    """A store as data: `store()` makes it, `stores=` connects it."""

    name: str
    key: Serde | None = None
    value: Serde | None = None
    retention_ms: int | None = None

    def __str__(self) -> str:
        kept = "" if self.retention_ms is None else f" (retention {spell(self.retention_ms)})"
        return f"{self.name}{kept}"


@overload
def store(
    name: str, *, key: Serde[K], value: Serde[V], retention: None = None
) -> StoreSpec[KeyValueStore[K, V]]: ...
@overload
def store(
    name: str, *, key: Serde[K], value: Serde[V], retention: Duration
) -> StoreSpec[WindowStore[K, V]]: ...
@overload
def store(
    name: str,
    *,
    key: Serde | None = None,
    value: Serde | None = None,
    retention: Duration | None = None,
) -> StoreSpec[Any]: ...
def store(
    name: str,
    *,
    key: Serde | None = None,
    value: Serde | None = None,
    retention: Duration | None = None,
) -> StoreSpec[Any]:
    """A store for processors. With `retention`: by key and time, and values expire.

    Serdes that are not given are the application's; else keys are bytes and values msgpack.
    """
    check_name(name, "store")
    for what, serde in (("key=", key), ("value=", value)):
        if serde is not None and (not hasattr(serde, "open") or isinstance(serde, type)):
            raise TopologyError(f"store {name!r}: {what} expected a serde, got {serde!r}")
    kept = None if retention is None else positive(retention, f"store {name!r}: retention")
    return StoreSpec(name, key, value, kept)


class ProcessorContext(Protocol[K2_contra, V2_contra]):
    """The context of a processor in one task, from `init` to `close`."""

    @property
    def stream_time(self) -> int:
        """The newest timestamp that the task has read; -1 before the first record."""

    @property
    def wall_clock(self) -> int:
        """Now, in epoch ms. It stands still while a record is processed."""

    @property
    def partition(self) -> int:
        """The partition of the task."""

    def forward(self, record: Record[K2_contra, V2_contra]) -> None:
        """Sends a record downstream, with its key, value, timestamp and headers."""

    @overload
    def store(self, store: StoreSpec[S]) -> S: ...
    @overload
    def store(self, store: str) -> Any: ...

    def schedule(
        self, interval: Duration, clock: Clock, function: Callable[[int], object]
    ) -> Timer:
        """Calls `function(timestamp)` every `interval` of stream time or of the wall clock."""


class Processor(Protocol[K_contra, V_contra, K2_co, V2_co]):
    """Takes records of K_contra and V_contra, forwards records of K2_co and V2_co.

    One object belongs to one task: it is made when the task starts.
    """

    def init(self, context: ProcessorContext[K2_co, V2_co]) -> None:
        """The task starts, with its stores as the last commit left them."""

    @abstractmethod
    def process(self, record: Record[K_contra, V_contra]) -> None:
        """Takes a record."""

    def close(self) -> None:
        """The task ends, after its last commit or after a failure. Nothing can be sent on."""
