"""Restores: the last value of each key, from a changelog of five updates a key.

A run over `updates` leaves the changelog; three more processes then begin with it:

| case | rows |
|---|---|
| restore-memory | from the changelog into memory |
| restore-disk | from the changelog into RocksDB |
| restore-checkpoint | RocksDB as the run left it |

`restore_s` is the time until the last row is restored: ours from the start of the application, that
of Kafka Streams from the first row on. `ready_s` is the time from the start until tasks run; ours
includes the end of the process, that of Kafka Streams the wait for the session of the process
before, which does not leave its group. The changelog of Kafka Streams has every update; ours has
one for each key and commit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from .report import OURS, PEER, Report
from .sides import Figures, Ours, Peer, last_line

NAMES: Final = ("restore",)
TOPIC: Final = "updates"


def ours_restored(side: Ours, folder: Path) -> dict[str, Figures]:
    """Our three cases."""
    source = side.input(TOPIC)
    settings: dict[str, Any] = {"processing_guarantee": "at_least_once"}
    kept = settings | {"state_dir": str(folder / "kept")}
    new = settings | {"state_dir": str(folder / "new")}
    with side.target() as target:
        last_line(side.job(source, target, "latest", **kept).command())
        found = {}
        for name, place in {"memory": settings, "disk": new, "checkpoint": kept}.items():
            said = last_line(side.job(source, target, "latest", **place).command())
            found[name] = {
                "restore_s": said["restore_s"],
                "ready_s": said["start_to_close_s"],
                "restored": said["records_restored"],
                "worker_cpu_s": said["worker_cpu_s"],
                "rss_mb": said["rss_mb"],
            }
    return found


def peer_restored(side: Peer) -> dict[str, Figures]:
    """The same of Kafka Streams; its cases go from what needs the checkpoint to what does not."""
    source = side.input(TOPIC)
    with side.target() as target, side.state(target) as state:
        given: dict[str, Any] = {
            "in": source,
            "out": target,
            "app": target,
            "topo": "reduce",
            "dir": state,
        }
        side.call(given | {"n": side.sizes[source], "cache": 0, "wipe": 1})
        found = {}
        cases: dict[str, dict[str, Any]] = {
            "checkpoint": {"wipe": 0},
            "disk": {"wipe": 1},
            "memory": {"wipe": 1, "store": "memory"},
        }
        for name, more in cases.items():
            said = side.call(given | {"cache": 0, "mode": "restore"} | more)
            found[name] = {
                "restore_s": said["s"],
                "ready_s": said["to_running_s"],
                "restored": said["n"],
                "worker_cpu_s": said["cpu_to_running_s"],
                "rss_mb": said["rss_mb"],
            }
    return found


def run(name: str, ours: Ours, peer: Peer | None, report: Report) -> None:
    """One round of all three."""
    folder = Path(ours.broker.directory) / "state"
    for case, figures in ours_restored(ours, folder).items():
        report.add(f"{name}-{case}", OURS, figures)
    if peer is not None:
        for case, figures in peer_restored(peer).items():
            report.add(f"{name}-{case}", PEER, figures)
            report.ratios(f"{name}-{case}")
