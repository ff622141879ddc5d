"""The controller's seat: which broker controls the cluster, and the number of its term.      [D]

    /controller         {"broker": id, "epoch": number of the term}   ephemeral
    /controller_epoch   the number of the last term

A broker takes the free seat and raises the number in one transaction, so a term has one controller.
Every write of the controller checks the version of `/controller_epoch`: a deposed controller writes
nothing any more. The seat is free again when the session of its holder ends.

A broker that has seen the holder's process die need not wait for that: it takes the seat in the
holder's place. A holder that lives after all is deposed like any other: it writes nothing any more.

Owns   both paths.
Fails  with CoordinationError for a value that does not read, and as the port does.
Source apache/kafka `KafkaZkClient.registerControllerAndIncrementControllerEpoch`.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from kafkalite.core.cluster.coordination import (
    Check,
    Coordination,
    Create,
    Delete,
    Entry,
    Operation,
)
from kafkalite.core.cluster.counters import counter
from kafkalite.errors import (
    CoordinationError,
    CoordinationUnavailable,
    NodeExists,
    NoSuchNode,
    OutcomeUnknown,
    VersionMismatch,
)

CONTROLLER_PATH: Final = "/controller"
EPOCH_PATH: Final = "/controller_epoch"
ATTEMPTS_MAX: Final = 10


class Seat(NamedTuple):
    """A term of a controller, and the version of EPOCH_PATH in it; -1 where nobody needs it."""

    node_id: int
    epoch: int
    version: int = -1

    @property
    def guard(self) -> Check:
        """What every write of this term checks."""
        return Check(EPOCH_PATH, self.version)


async def holder(coordination: Coordination) -> Seat | None:
    """The controller now; None while the seat is free."""
    (found,) = await coordination.get_many([CONTROLLER_PATH])
    return None if found is None else _parsed(found)


async def take(coordination: Coordination, node_id: int, dead: Seat | None = None) -> Seat | None:
    """Takes the seat for the broker `node_id`; None if another broker has it. The holder `dead`
    does not count."""
    wanted = None  # the term of a transaction whose answer was lost
    for _ in range(ATTEMPTS_MAX):
        last = await counter(coordination, EPOCH_PATH)
        held = await holder(coordination)
        cleared: tuple[Operation, ...] = ()
        if held is not None:
            if held.node_id == node_id and held.epoch == wanted == last.number:
                return held._replace(version=last.version)  # the answer was lost
            if dead is None or not held.epoch == dead.epoch == last.number:
                return None
            cleared = (Delete(CONTROLLER_PATH),)  # of that term: the number has not risen since
        wanted = last.number + 1
        value = json.dumps({"broker": node_id, "epoch": wanted}).encode()
        seat = Create(CONTROLLER_PATH, value, is_ephemeral=True)
        try:
            await coordination.transact((*cleared, seat, last.raised()))
        except OutcomeUnknown:
            continue
        except (NodeExists, NoSuchNode, VersionMismatch):
            return None
        return Seat(node_id, wanted, last.version + 1)
    raise CoordinationUnavailable(f"{CONTROLLER_PATH} was not taken in {ATTEMPTS_MAX} attempts")


def _parsed(entry: Entry) -> Seat:
    try:
        value = json.loads(entry.value)
        return Seat(int(value["broker"]), int(value["epoch"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CoordinationError(f"{CONTROLLER_PATH} does not read: {error!r}") from error
