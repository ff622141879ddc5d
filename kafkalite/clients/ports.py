"""What a client takes from the world: the network, the wall clock, chance.                  [IO]

    connect   opens connections
    time_ns   the wall clock: the timestamp of records that have none
    random    makes the source of chance of a client that was given none: jitter, partitions

Timers and pauses are those of the event loop that the client runs in. `MACHINE` is the world as it
is; a simulation hands in another: `kafkalite.testing.simulation`.

Owns   the choice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from kafkalite.core import sockets
from kafkalite.core.network import Connect

NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPorts:
    """The world of a client."""

    connect: Connect
    time_ns: Callable[[], int]
    random: Callable[[], Random]

    def now_ms(self) -> int:
        """The wall clock, epoch ms."""
        return self.time_ns() // NS_PER_MS


MACHINE: Final = ClientPorts(connect=sockets.connect, time_ns=time.time_ns, random=Random)
