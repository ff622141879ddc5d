"""Memory for the large requests that are being received, shared out as they arrive.          [P]

A large request takes room step by step, as much as its next buffer has. Memory in use counts, not
the announced size, so a peer that announces much and sends nothing hinders nobody.
Once all is taken the others wait, in the order of their coming, holders that need more among
them. Where every holder waits, the first is given the room for all of its request, beyond what
there is: so one of them always comes to its end, and never more than one is beyond.

Owns   the holders, how much each holds and since when, and the queue.
Never  reads a clock; never calls anybody: `let_in` returns the connections that may go on.
Fails  not at all.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

H = TypeVar("H", bound=Hashable)


class _Share(NamedTuple):
    byte_count: int
    since: float  # when it began, or was let in after a wait


class _Wish(NamedTuple):
    byte_count: int  # for the next step, in all
    whole: int  # for all of the request


@dataclass(slots=True)
class RequestRoom(Generic[H]):
    """`capacity` bytes for whoever receives a large request; the last step may pass them."""

    capacity: int
    taken: int = 0
    _shares: dict[H, _Share] = field(default_factory=dict)
    _waiting: dict[H, _Wish] = field(default_factory=dict)  # in the order of their coming

    @property
    def is_wanted(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiting)

    @property
    def waiting(self) -> tuple[H, ...]:
        """Who waits, first come first."""
        return tuple(self._waiting)

    @property
    def holders(self) -> tuple[H, ...]:
        """Who has room, waiting for more or not."""
        return tuple(self._shares)

    def take(self, holder: H, byte_count: int, whole: int, now: float) -> bool:
        """Whether `holder` may have `byte_count` bytes in all, of a request of `whole`.

        If not it waits, and `let_in` will name it.
        """
        share = self._shares.get(holder)
        if share is not None and byte_count <= share.byte_count:
            return True
        if self._waiting or self.taken >= self.capacity:
            self._waiting[holder] = _Wish(byte_count, whole)
            return False
        self._give(holder, byte_count, share.since if share is not None else now)
        return True

    def give_back(self, holder: H) -> None:
        """The request of `holder` is answered, or will never come."""
        self._waiting.pop(holder, None)
        share = self._shares.pop(holder, None)
        if share is not None:
            self.taken -= share.byte_count

    def let_in(self, now: float) -> list[H]:
        """Those who waited and may go on now."""
        let_in: list[H] = []
        while self._waiting:
            has_room = self.taken < self.capacity
            if not has_room and not self._shares.keys() <= self._waiting.keys():
                break
            first = next(iter(self._waiting))
            wish = self._waiting.pop(first)
            self._give(first, wish.byte_count if has_room else wish.whole, now)
            let_in.append(first)
        return let_in

    def overdue(self, before: float) -> list[H]:
        """Those who have received since `before` or longer, and do not wait themselves."""
        return [
            holder
            for holder, share in self._shares.items()
            if share.since < before and holder not in self._waiting
        ]

    def _give(self, holder: H, byte_count: int, since: float) -> None:
        held = self._shares.get(holder)
        self.taken += byte_count - (held.byte_count if held is not None else 0)
        self._shares[holder] = _Share(byte_count, since)
