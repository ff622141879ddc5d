"""What every worker of Spark has: the layout and the user's functions, shipped as bytes.    [IO]

    driver    Shipment.of(layout, servers, module) ──bytes──> readers, steps, writers
    worker    shipment.maker: unpickled once a process, by its digest

The module of the application goes by value, as no worker can import a file that was given by path.
Modules that it imports from its own folder are looked for in `paths`.

Owns   the makers of this process, each with a registry's client; the counts of what it left out.
Fails  with TopologyError where a function, or what it refers to, cannot be pickled.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from pyspark import cloudpickle as _cloudpickle

from kafkalite.clients.ports import MACHINE
from kafkalite.columnar.ranges import OffsetRange
from kafkalite.columnar.reading import read_range
from kafkalite.columnar.settings import ReadSettings
from kafkalite.core.types import Columns
from kafkalite.errors import TopologyError
from kafkalite.serde.registry_log import registry_at
from kafkalite.spark.topology.buckets import Maker
from kafkalite.spark.topology.stages import Layout
from kafkalite.spark.topology.tables import TableCopies
from kafkalite.streams.local.call_loop import call_with_retries
from kafkalite.streams.local.calls import AsyncCallee, Call, Calls, Done, WaitedCalls
from kafkalite.streams.local.drops import Drops

MAKERS_MAX: Final = 8

cloudpickle: Any = _cloudpickle  # it has no types

log: Final = logging.getLogger(__name__)
drops: Final = Drops()  # the records that this process has left out

_makers: dict[str, Maker] = {}


def warn_of_drops(shipment: Shipment) -> None:
    """Says which records were left out, at most once a minute; the run's summary has the counts."""
    if words := drops.warning(MACHINE.now_ms() / 1000):
        name = shipment.maker.layout.stages.plan.application_id
        log.warning("%s: %s", name, words)


@dataclass(frozen=True, slots=True)
class Shipment:
    """A layout as bytes."""

    servers: str
    digest: str
    data: bytes
    paths: tuple[str, ...] = ()

    @staticmethod
    def of(
        layout: Layout, servers: str, module: ModuleType | None = None, paths: Sequence[str] = ()
    ) -> Shipment:
        """Pickles a layout; `module` is that of the user's functions."""
        if module is not None:
            cloudpickle.register_pickle_by_value(module)
        try:
            data: bytes = cloudpickle.dumps(layout)
        except Exception as error:
            name = layout.stages.plan.application_id
            raise TopologyError(
                f"{name}: its functions cannot be sent to Spark's workers: {error}; open "
                "connections, files and locks in a processor's init, or at the first call"
            ) from error
        finally:
            if module is not None:
                cloudpickle.unregister_pickle_by_value(module)
        return Shipment(servers, hashlib.sha256(data).hexdigest(), data, tuple(paths))

    @property
    def maker(self) -> Maker:
        """What makes the tasks in this process."""
        place = f"{self.servers} {self.digest}"
        if place not in _makers:
            sys.path += [path for path in self.paths if path not in sys.path]
            while len(_makers) >= MAKERS_MAX:
                del _makers[next(iter(_makers))]
            layout: Layout = cloudpickle.loads(self.data)
            registry = registry_at(self.servers)
            tables = TableCopies(layout.stages.plan, registry, self._read, drops)
            _makers[place] = Maker(layout, registry, _waited, tables)
        return _makers[place]

    def _read(self, wanted: OffsetRange) -> Iterator[Columns]:
        """Records of a global table's topic, which its cleaner may have thinned out."""
        settings = ReadSettings(self.servers, client_id="kafkalite-topology")
        found = read_range(settings, wanted, fail_on_data_loss=False)
        return (rows.columns for rows in found)


def _waited(callee: AsyncCallee) -> Calls:
    """The calls of an async function: a task waits for all that it has handed in."""
    return WaitedCalls(callee, _run)


def _run(callee: AsyncCallee, calls: Sequence[Call]) -> list[Done]:
    """Runs calls at the same time, as many as their limits allow, with pauses between tries."""
    from kafkalite.clients.sync.loop_thread import loop_thread

    async def run() -> list[Done]:
        room = asyncio.Semaphore(callee.limits.concurrency)

        async def one(call: Call) -> Done:
            async with room:
                return await call_with_retries(callee, call, asyncio.sleep)

        return list(await asyncio.gather(*map(one, calls)))

    return loop_thread().run(run)
