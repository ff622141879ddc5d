"""A broker's registration: where it is, under a new number for each of its starts.         [IO]

    /broker_ids      how many ids were taken by brokers that had none
    /broker_epochs   the number of the last start of any broker
    /brokers/<id>    endpoints, rack, the number of this start      ephemeral

The last two are written in one transaction, so no two starts have one number. A registration at
the same addresses is of an earlier process, because this one has the addresses now: it is replaced.
Another one is waited for: it goes when its session ends, or when the controller, which has seen the
process die, ends it before.

Owns   the paths, for its own broker; for others `end_registration` in a controller's term.
Fails  with ConfigError when another session holds the id for longer than a session may live
       without its broker, and as the port does.
Source KIP-380 (broker epochs); apache/kafka `KafkaZkClient.registerBroker`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from kafkalite.core.cluster import image as images
from kafkalite.core.cluster.coordination import Check, Coordination, Create, Delete
from kafkalite.core.cluster.counters import counter
from kafkalite.core.cluster.image import BROKERS_PATH, ClusterRecord
from kafkalite.core.types import NO_EPOCH
from kafkalite.errors import (
    ConfigError,
    CoordinationUnavailable,
    NodeExists,
    NoSuchNode,
    OutcomeUnknown,
    VersionMismatch,
)

BROKER_IDS_PATH: Final = "/broker_ids"
BROKER_EPOCHS_PATH: Final = "/broker_epochs"
LOOK_SECONDS: Final = 0.2  # between looks at a registration that is to go
ATTEMPTS_MAX: Final = 100

RecordOf = Callable[[int], ClusterRecord]  # the registration under a broker epoch


async def register(
    coordination: Coordination, node_id: int, record_of: RecordOf, patience_s: float
) -> ClusterRecord:
    """Registers a start of the broker; the record that was written. A registration of its id at
    other addresses is waited for, so long at most."""
    path = images.broker_path(node_id)
    own = images.registration(record_of(NO_EPOCH))[1].endpoints
    attempted: ClusterRecord | None = None
    looks = 0
    for _ in range(ATTEMPTS_MAX + round(patience_s / LOOK_SECONDS)):
        last = await counter(coordination, BROKER_EPOCHS_PATH)  # first: it guards what is replaced
        (known,) = await coordination.get_many([path])
        if known is not None:
            if attempted is not None and known.value == attempted.value:
                return attempted  # the answer was lost, the registration is there
            where = images.registration(ClusterRecord(path, known.value))[1].endpoints
            if where != own and looks * LOOK_SECONDS >= patience_s:
                words = f"broker {node_id} is registered by another process, at {where}"
                raise ConfigError(words, setting="broker.id")
            if where != own:
                looks += 1
                await asyncio.sleep(LOOK_SECONDS)
                continue
        attempted = record_of(last.number + 1)
        assert attempted.value is not None, "a registration says where the broker is"
        earlier = () if known is None else (Delete(path),)
        registration = Create(path, attempted.value, is_ephemeral=True)
        try:
            await coordination.transact((last.raised(), *earlier, registration))
        except NoSuchNode:
            with suppress(NodeExists, OutcomeUnknown):
                await coordination.transact((Create(BROKERS_PATH, b""),))
        except (OutcomeUnknown, NodeExists, VersionMismatch):
            continue
        else:
            return attempted
    raise CoordinationUnavailable(f"{path} was not written in {ATTEMPTS_MAX} attempts")


async def free_node_id(coordination: Coordination, reserved_max: int) -> int:
    """An id that no other broker gets, above those that are reserved for brokers with a setting."""
    for _ in range(ATTEMPTS_MAX):
        last = await counter(coordination, BROKER_IDS_PATH)
        try:
            await coordination.transact((last.raised(),))
        except (OutcomeUnknown, VersionMismatch):  # a number that nobody takes does no harm
            continue
        return reserved_max + last.number + 1
    raise CoordinationUnavailable(f"{BROKER_IDS_PATH} was not raised in {ATTEMPTS_MAX} attempts")


async def end_registration(
    coordination: Coordination, guard: Check, node_id: int, epoch: int
) -> bool:
    """Removes the registration of a start of a broker, whose process is gone; False if it was gone
    already, or of another start. `guard` is that of the controller's term.

    If the process lives, it loses no more than this start's epoch: it registers again.
    """
    path = images.broker_path(node_id)
    last = await counter(coordination, BROKER_EPOCHS_PATH)
    (known,) = await coordination.get_many([path])
    if known is None or images.registration(ClusterRecord(path, known.value))[1].epoch != epoch:
        return False
    try:
        await coordination.transact((guard, last.unchanged(), Delete(path)))
    except NoSuchNode:
        return False
    return True
