"""People, auctions and bids in Nexmark's proportions, from a seed.                        [P]

Of 50 events one is a person, three are auctions, 46 are bids. Event `n` happens `n` / `rate`
seconds after the start. An auction is stamped a millisecond later than that and a bid two, so
nothing is as old as what it refers to. Numbers of people and auctions count from 1,000.

| parameter | value |
|---|---|
| `rate` | events a second of event time, 10,000 |
| ACTIVE_PEOPLE | a seller or bidder is one of the newest 1,000 people |
| OPEN_AUCTIONS | a bid is for one of the newest 100 auctions |
| HOT_SELLERS, HOT_AUCTIONS, HOT_BIDDERS | 3 of 4, 1 of 2, 3 of 4 take the one that is hot |
| HOT_OF | one in 100 is hot: the newest whose number is a multiple of it, bidders one further |
| HOT_CHANNELS | 1 of 2 bids come by one of four channels, the others by one of 10,000 |
| CATEGORIES | 10 to 14 |
| price | 10 ** (0 to 6), times 100, so that each decade has as many |
| expiry | up to twice as long as 100 auctions take to come |
| `extra` | letters that make a person 200, an auction 500, a bid 100 bytes, about |

Source the Nexmark benchmark for Beam and Flink; shapes and proportions are its, code is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final, NamedTuple

PERSONS: Final = "persons"
AUCTIONS: Final = "auctions"
BIDS: Final = "bids"
ROUND: Final = 50
AUCTIONS_A_ROUND: Final = 3
BIDS_A_ROUND: Final = 46
FIRST: Final = 1_000
ACTIVE_PEOPLE: Final = 1_000
OPEN_AUCTIONS: Final = 100
HOT_OF: Final = 100
HOT_SELLERS, HOT_AUCTIONS, HOT_BIDDERS = 0.75, 0.5, 0.75
HOT_CHANNELS: Final = ("Google", "Facebook", "Baidu", "Apple")
CHANNELS: Final = 10_000
CATEGORIES: Final = 5
FIRST_CATEGORY: Final = 10
STATES: Final = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES: Final = ("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond",
                 "Seattle", "Kent", "Cheyenne")  # fmt: skip
NAMES: Final = (
    "Peter",
    "Paul",
    "Luke",
    "John",
    "Saul",
    "Vicky",
    "Kate",
    "Julie",
    "Sarah",
    "Deiter",
)
SURNAMES: Final = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones")
EXTRA: Final = {PERSONS: 80, AUCTIONS: 360, BIDS: 20}
LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
TEXT: Final = 1 << 16


class Event(NamedTuple):
    """One record of a topic. Keys are the numbers of people and auctions, as text."""

    topic: str
    key: str
    value: dict[str, Any]
    timestamp: int


@dataclass(frozen=True, slots=True)
class Parameters:
    """Of a run of events."""

    start_ms: int = 1_436_918_400_000
    rate: int = 10_000
    seed: int = 1


class Generator:
    """All events, one after the other."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._random = Random(parameters.seed)
        self._text = "".join(self._random.choices(LETTERS, k=TEXT))
        self._person = self._auction = FIRST - 1  # the newest

    def events(self, count: int) -> Iterator[Event]:
        """The first so many."""
        start, rate = self._parameters.start_ms, self._parameters.rate
        for number in range(count):
            at, place = start + number * 1_000 // rate, number % ROUND
            if place == 0:
                self._person += 1
                yield Event(PERSONS, str(self._person), self._person_at(at), at)
            elif place <= AUCTIONS_A_ROUND:
                self._auction += 1
                yield Event(AUCTIONS, str(self._auction), self._auction_at(at + 1), at + 1)
            else:
                bid = self._bid_at(at + 2)
                yield Event(BIDS, str(bid["auction"]), bid, at + 2)

    def _person_at(self, at: int) -> dict[str, Any]:
        choose = self._random.choice
        first, last = choose(NAMES), choose(SURNAMES)
        return {
            "id": self._person,
            "name": f"{first} {last}",
            "emailAddress": f"{first}.{last}@{self._letters(8)}.com".lower(),
            "creditCard": f"{self._random.randrange(10**16):016d}",
            "city": choose(CITIES),
            "state": choose(STATES),
            "dateTime": at,
            "extra": self._letters(EXTRA[PERSONS]),
        }

    def _auction_at(self, at: int) -> dict[str, Any]:
        initial = self._price()
        seller = _hot(self._person) if self._is(HOT_SELLERS) else self._anyone()
        return {
            "id": self._auction,
            "itemName": self._letters(20),
            "description": self._letters(100),
            "initialBid": initial,
            "reserve": initial + self._price(),
            "dateTime": at,
            "expires": at + 1 + self._random.randrange(self._expiry_ms()),
            "seller": seller,
            "category": FIRST_CATEGORY + self._random.randrange(CATEGORIES),
            "extra": self._letters(EXTRA[AUCTIONS]),
        }

    def _bid_at(self, at: int) -> dict[str, Any]:
        if self._is(HOT_AUCTIONS):
            auction = _hot(self._auction)
        else:
            auction = self._one_of_the_newest(self._auction, OPEN_AUCTIONS)
        hot_bidder = min(_hot(self._person) + 1, self._person)
        if self._is(0.5):
            channel = self._random.choice(HOT_CHANNELS)
        else:
            channel = f"channel-{self._random.randrange(CHANNELS)}"
        folders = "/".join(self._letters(5) for _ in range(3))
        return {
            "auction": auction,
            "bidder": hot_bidder if self._is(HOT_BIDDERS) else self._anyone(),
            "price": self._price(),
            "channel": channel,
            "url": f"https://www.nexmark.com/{folders}/item.htm?query=1",
            "dateTime": at,
            "extra": self._letters(EXTRA[BIDS]),
        }

    def _is(self, chance: float) -> bool:
        return self._random.random() < chance

    def _price(self) -> int:
        return round(10 ** (self._random.random() * 6) * 100)

    def _letters(self, count: int) -> str:
        start = self._random.randrange(TEXT - count)
        return self._text[start : start + count]

    def _anyone(self) -> int:
        return self._one_of_the_newest(self._person, ACTIVE_PEOPLE)

    def _one_of_the_newest(self, newest: int, count: int) -> int:
        return self._random.randrange(max(FIRST, newest - count + 1), newest + 1)

    def _expiry_ms(self) -> int:
        events = OPEN_AUCTIONS * ROUND // AUCTIONS_A_ROUND
        return max(1, 2 * events * 1_000 // self._parameters.rate)


def _hot(newest: int) -> int:
    return max(FIRST, newest // HOT_OF * HOT_OF)
