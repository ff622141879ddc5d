"""Memory for the large requests that are being received, shared out as they arrive.          [P]

A large request takes room step by step, as much as its next buffer has. Memory counts, not the
announced size, so a peer that announces much and sends nothing takes no room from others. A host
may hold a share of the room. If its share or the whole room is taken, a request waits, in the order
of arrival, and a holder that needs more waits like the others. If every holder in the way
waits, too, the request gets room for all of its bytes, beyond the capacity. So one of them always
comes to its end, and each host has at most one request beyond its share.

While requests wait, a holder must keep receiving: `slow` names the others.

Owns   the holders, their bytes and times, and the waiting requests.
Never  reads a clock or calls a connection: `let_in` returns the connections that may go on.
Fails  not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

H = TypeVar("H", bound=Hashable)


class _Share(NamedTuple):
    host: str
    byte_count: int
    since: float  # when it began, or was let in after a wait


class _Wish(NamedTuple):
    host: str
    byte_count: int  # for the next step, in all
    whole: int  # for all of the request


@dataclass(slots=True)
class RequestRoom(Generic[H]):
    """`capacity` bytes for large requests, `per_host` of them for one host; the last step may
    exceed both."""

    capacity: int
    per_host: int = 1 << 62
    taken: int = 0
    _of_host: dict[str, int] = field(default_factory=dict)  # what it holds
    _shares: dict[H, _Share] = field(default_factory=dict)
    _waiting: dict[H, _Wish] = field(default_factory=dict)  # in the order of their coming
    _arrived: dict[H, int] = field(default_factory=dict)  # of a holder's request, when last seen

    @property
    def is_wanted(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiting)

    @property
    def waiting(self) -> tuple[H, ...]:
        """The waiting connections in the order of their arrival."""
        return tuple(self._waiting)

    @property
    def holders(self) -> tuple[H, ...]:
        """The connections that have room, including those that wait for more."""
        return tuple(self._shares)

    def take(self, holder: H, byte_count: int, whole: int, now: float, host: str = "") -> bool:
        """Whether `holder` may have `byte_count` bytes in all, of a request of `whole`.

        If not it waits, and `let_in` will name it.
        """
        share = self._shares.get(holder)
        if share is not None and byte_count <= share.byte_count:
            return True
        is_behind = self._waiting and any(wish.host == host for wish in self._waiting.values())
        if is_behind or not (self._has_room() and self._has_share(host)):
            self._waiting[holder] = _Wish(host, byte_count, whole)
            return False
        self._give(holder, host, byte_count, share.since if share is not None else now)
        return True

    def give_back(self, holder: H) -> None:
        """The request of `holder` is answered, or will never come."""
        self._waiting.pop(holder, None)
        share = self._shares.pop(holder, None)
        if share is not None:
            self._arrived.pop(holder, None)
            self._count(share.host, -share.byte_count)

    def let_in(self, now: float) -> list[H]:
        """The waiting connections that may go on now."""
        let_in: list[H] = []
        for holder, wish in tuple(self._waiting.items()):
            has_room, has_share = self._has_room(), self._has_share(wish.host)
            if not (has_room or self._all_wait(None)):
                break
            if has_share or self._all_wait(wish.host):
                del self._waiting[holder]
                fits = has_room and has_share
                self._give(holder, wish.host, wish.byte_count if fits else wish.whole, now)
                let_in.append(holder)
        return let_in

    def overdue(self, before: float) -> list[H]:
        """The holders that have received since `before` or longer, and do not wait themselves."""
        return [
            holder
            for holder, share in self._shares.items()
            if share.since < before and holder not in self._waiting
        ]

    def slow(self, byte_count: int, arrived: Callable[[H], int]) -> list[H]:
        """The holders that have received less than `byte_count` bytes since the last call, and did
        not wait meanwhile. `arrived` returns the bytes of a holder's request so far."""
        before, self._arrived = self._arrived, {}
        slow: list[H] = []
        for holder in self._shares:
            if holder in self._waiting:
                continue
            self._arrived[holder] = arrived(holder)
            if holder in before and self._arrived[holder] - before[holder] < byte_count:
                slow.append(holder)
        return slow

    def _has_room(self) -> bool:
        return self.taken < self.capacity

    def _has_share(self, host: str) -> bool:
        return self._of_host.get(host, 0) < self.per_host

    def _all_wait(self, host: str | None) -> bool:
        """Whether all holders, or those of `host`, wait, so that none of them will give back."""
        return all(
            holder in self._waiting
            for holder, share in self._shares.items()
            if host is None or share.host == host
        )

    def _give(self, holder: H, host: str, byte_count: int, since: float) -> None:
        held = self._shares.get(holder)
        self._count(host, byte_count - (held.byte_count if held is not None else 0))
        self._shares[holder] = _Share(host, byte_count, since)
        self._arrived.pop(holder, None)

    def _count(self, host: str, byte_count: int) -> None:
        self.taken += byte_count
        if held := self._of_host.get(host, 0) + byte_count:
            self._of_host[host] = held
        else:
            self._of_host.pop(host, None)
