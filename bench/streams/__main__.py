"""Our streams engine beside Kafka Streams, in one run: the same topologies over the same topics.

    make bench-streams KIT=DIR LAB=DIR [ARGS='--records 1000000 --only bytes,count']
    python -m bench.streams --kit DIR --lab DIR       both sides, case by case
    python -m bench.streams --ours                    ours alone, needs nothing else

The kit is a folder outside this project with `broker.sh` and StreamsBench; `lab` is where its
`setup.sh kafka streams` put jars and classes. Each side runs on a broker of its own. A line of JSON
is printed for every run and for the ratios, ours ÷ Kafka Streams', and a table at the end.

One case alone, in half a minute; `throughput` lists them:

    python -m bench.streams --ours --only stream-join,stream-join-expressions --records 300000

A JVM needs half a minute to be at its best, so the rate of its second half stands beside that of
the whole run. Rates vary by two to three times on a shared machine; CPU seconds vary less.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from . import failover, latency, restore, scaling, throughput
from .report import Report
from .sides import our_streams, peer_streams, started

SUBJECTS: Final = {
    name: subject.run
    for subject in (throughput, restore, failover, scaling, latency)
    for name in subject.NAMES
}
USUAL: Final = [name for name in SUBJECTS if name not in throughput.RARE]


def compare(names: list[str], options: argparse.Namespace, scratch: Path) -> None:
    """Every case as often as there are rounds."""
    ours, peer = our_streams(scratch, options.records), None
    if not options.ours:
        kit, lab = Path(options.kit).resolve(), Path(options.lab).resolve()
        peer = peer_streams(kit, lab, scratch, options.records)
    report = Report()
    with ExitStack() as stack:
        for side in (ours, peer):
            if side is not None:
                stack.enter_context(started(side))
        for _ in range(options.rounds):
            for name in names:
                SUBJECTS[name](name, ours, peer, report)
                report.ratios(name)
    print("\n".join(report.table()))


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="bench.streams", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kit", default=os.environ.get("KAFKALITE_BENCH_KIT"), help="its folder")
    parser.add_argument("--lab", default=os.environ.get("LAB"), help="what its setup.sh made")
    parser.add_argument("--ours", action="store_true", help="ours alone, without the kit")
    parser.add_argument("--records", type=int, default=5_000_000, help="of an input")
    parser.add_argument("--only", default=",".join(USUAL), help=f"of {', '.join(SUBJECTS)}")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--scratch", help="where the brokers keep their data meanwhile")
    options = parser.parse_args()
    if unknown := set(options.only.split(",")) - SUBJECTS.keys():
        parser.error(f"there is no case {', '.join(sorted(unknown))}")
    if not options.ours and not (options.kit and options.lab):
        parser.error("no kit to run Kafka Streams with: give --kit and --lab, or --ours")
    return options


def main() -> None:
    options = parsed()
    scratch = Path(tempfile.mkdtemp(prefix="bench-streams-", dir=options.scratch))
    try:
        compare(options.only.split(","), options, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
