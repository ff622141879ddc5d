"""A whole input through one topology, one worker process of one thread on either side.

At least once on both sides, unless the case's name ends with `-eos`: exactly once on both. State is
in memory here and in RocksDB in Kafka Streams, the default of each. One case alone:

    python -m bench.streams --ours --only stream-join --records 300000
    python -m bench.streams --kit DIR --lab DIR --only stream-join,stream-join-expressions
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from .flights import FLIGHTS
from .report import OURS, PEER, Report
from .sides import Figures, Ours, Peer

EXACTLY_ONCE: Final = "-eos"
EXPRESSIONS: Final = "-expressions"


@dataclass(frozen=True, slots=True)
class Case:
    """Our topology has the case's name; `peer` is what the program for Kafka Streams is given."""

    source: str
    peer: dict[str, Any] | None  # None: it has no such program
    settings: dict[str, Any] = field(default_factory=dict)  # of our application


FOREIGN_JOIN: Final = Case(
    "purchases,users", {"topology": "foreign-join", "cache": 0}, {"cache": 0}
)
CASES: Final = {
    "bytes": Case("keyed", {"topology": "stateless"}),
    "json": Case("keyed", {"topology": "json"}),
    "json-expressions": Case("keyed", {"topology": "json"}),
    "avro": Case("events", {"topology": "avro"}),
    "avro-expressions": Case("events", {"topology": "avro"}),
    "avro-aggregate": Case("events", {"topology": "avroagg"}),
    "count": Case("keyed", {"topology": "count"}),
    "count-every-update": Case("keyed", {"topology": "count", "cache": 0}),
    "stream-join": Case("orders,payments", {"topology": "stream-join"}),
    "stream-join-expressions": Case("orders,payments", {"topology": "stream-join"}),
    "table-join": Case("visits,users", {"topology": "table-join"}),
    "table-join-expressions": Case("visits,users", {"topology": "table-join"}),
    "session-count": Case("visits", {"topology": "session-count"}),
    "sliding-mean": Case("visits", {"topology": "sliding-mean"}),
    "sliding-mean-expressions": Case("visits", {"topology": "sliding-mean"}),
    "foreign-join": FOREIGN_JOIN,
    "foreign-join-expressions": FOREIGN_JOIN,
    "flights": Case(FLIGHTS, None),
    "flights-expressions": Case(FLIGHTS, None),
}
NAMES: Final = (*CASES, *(f"{name}{EXACTLY_ONCE}" for name in CASES))
RARE: Final = {  # only when they are asked for
    f"{name}{EXACTLY_ONCE}" for name in CASES.keys() - {"bytes", "count", "avro-aggregate"}
}


def run(name: str, ours: Ours, peer: Peer | None, report: Report) -> None:
    """One round of a case: the peer after us."""
    case = CASES[name.removesuffix(EXACTLY_ONCE)]
    is_exact = name.endswith(EXACTLY_ONCE)
    topology = name.removesuffix(EXACTLY_ONCE)
    guarantee = "exactly_once" if is_exact else "at_least_once"
    settings = case.settings | {"processing_guarantee": guarantee}
    report.add(name, OURS, ours.measure(case.source, topology, **settings))
    if peer is not None and case.peer is not None:
        has_functions = not topology.endswith(EXPRESSIONS)
        report.add(name, PEER, peer_figures(peer, case, is_exact=is_exact, anew=has_functions))


def peer_figures(peer: Peer, case: Case, *, is_exact: bool, anew: bool) -> Figures:
    """It has no expressions: after a case with functions its figures count for both."""
    assert case.peer is not None
    what = (case.source, *case.peer.items(), is_exact)
    if anew or peer.latest is None or peer.latest[0] != what:
        figures = peer.measure(case.source, **case.peer, eos=int(is_exact))
        peer.latest = what, figures
    return peer.latest[1]
