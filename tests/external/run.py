"""Runs suites that others wrote against a fresh kafkalite, or with --bootstrap any other broker.

    python tests/external/run.py                           every suite that can run here
    python tests/external/run.py kafka-python franz-go     these
    python tests/external/run.py --all franz-go            excluded tests too: which pass by now?
    python tests/external/run.py --brokers 3 franz-go      a cluster, and topics of three replicas
    python tests/external/run.py --bootstrap 127.0.0.1:9092 --version 4.3 kafka-python

Exit code 0: all that ran passed; 1: not so; 3: nothing ran, because programs are missing.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import confluent_go
import franz_go
import goka
import kafka_go
import kafka_python
import librdkafka
import rust_rdkafka
import sarama
import watermill
from suite import Outcome, Run, Suite, Target, cached

from kafkalite.embedded import EmbeddedBroker
from kafkalite.embedded_cluster import EmbeddedCluster

SUITES: dict[str, Suite] = {
    module.SUITE.name: module.SUITE
    for module in (
        kafka_python,
        franz_go,
        librdkafka,
        rust_rdkafka,
        sarama,
        kafka_go,
        confluent_go,
        watermill,
        goka,
    )
}
OUR_VERSION = "3.9"  # of Apache Kafka, by the versions of the APIs that we serve
NOT_RUN = 3
ALONE = Target("", 0, OUR_VERSION, is_ours=True)  # the broker for which suites say `passing_min`


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns its exit code."""
    options = parsed(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # children end too
    verdicts = []
    for name in options.suites or SUITES:
        suite = SUITES[name]
        if missing := suite.missing_programs:
            print(f"{suite.name} {suite.version}: not run, needs {', '.join(missing)}")
            continue
        verdicts.append(run_suite(suite, options))
    if not verdicts:
        return NOT_RUN
    return 0 if all(verdicts) else 1


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    words = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=words)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="another broker, not a fresh one")
    parser.add_argument("--brokers", type=int, default=1, metavar="N", help="of a fresh cluster")
    parser.add_argument("--version", default="4.3", help="Apache Kafka's, with --bootstrap")
    parser.add_argument("--all", action="store_true", help="run excluded tests too")
    parser.add_argument("--logs", type=Path, default=Path("external-logs"), help="a folder")
    options = parser.parse_args(arguments)
    for name in options.suites:
        if name not in SUITES:
            parser.error(f"no suite {name!r}; there are {', '.join(SUITES)}")
    return options


def run_suite(suite: Suite, options: argparse.Namespace) -> bool:
    """Runs one suite against one broker and prints what came of it. Was it good?"""
    source = cached(suite)
    options.logs.mkdir(parents=True, exist_ok=True)
    log = (options.logs / f"{suite.name}.log").resolve()
    log.write_bytes(b"")
    started = time.monotonic()
    with TemporaryDirectory(prefix="kafkalite-external-") as scratch:
        folder = Path(scratch)
        (folder / "suite").mkdir()
        words = options.logs / f"{suite.name}-brokers.log"
        brokers = max(options.brokers, suite.brokers_min)
        ours = None if options.bootstrap else fresh(suite, folder / "data", brokers, words)
        with ours or nullcontext():
            at, *others = (ours.bootstrap_servers if ours else options.bootstrap).split(",")
            host, _, port = at.rpartition(":")
            version = options.version if options.bootstrap else OUR_VERSION
            target = Target(host, int(port), version, ours is not None, tuple(others))
            excluded = [] if options.all else sorted(suite.excluded_on(target))
            cluster = ours if isinstance(ours, EmbeddedCluster) else None
            run = Run(source, target, excluded, log, folder / "suite", cluster, words)
            outcomes = {result.name: result.outcome for result in suite.run(run)}
    return told(suite, target, outcomes, time.monotonic() - started, log)


def fresh(suite: Suite, data: Path, brokers: int, words: Path) -> EmbeddedBroker | EmbeddedCluster:
    """A fresh broker of ours, or a cluster of several, whose logs go into the file `words`."""
    if brokers == 1:
        return EmbeddedBroker(data, listen=suite.listen, overrides=suite.settings)
    settings = {name: text for name, text in suite.settings.items() if name != "node.id"}
    words.write_bytes(b"")

    def note(broker: str, line: str) -> None:
        with words.open("a") as log:
            log.write(f"{broker}: {line}\n")

    each = [suite.settings_of(node_id) for node_id in range(1, brokers + 1)]
    for name in {name for one in each for name in one}:
        settings.pop(name, None)
    racks = [str(node_id) for node_id in range(1, brokers + 1)]
    return EmbeddedCluster(
        data, brokers=brokers, racks=racks, overrides=settings, each=each, on_log=note
    )


def told(
    suite: Suite, target: Target, outcomes: dict[str, Outcome], seconds: float, log: Path
) -> bool:
    def having(outcome: Outcome) -> list[str]:
        return sorted(name for name, told in outcomes.items() if told is outcome)

    excluded = suite.excluded_on(target)
    passed, failed, skipped = map(having, (Outcome.PASSED, Outcome.FAILED, Outcome.SKIPPED))
    unexpected = [name for name in failed if name not in excluded]
    broker = f"{target.bootstrap} ({target.version})"
    if target.is_ours:
        broker = f"{1 + len(target.others)} brokers of kafkalite" if target.others else "kafkalite"
    print(
        f"{suite.name} {suite.version} on {broker}: {len(passed)} passed, {len(failed)} failed, "
        f"{len(skipped)} skipped, {len(excluded)} excluded, in {seconds:.0f} s; log: {log}"
    )
    show("failed", unexpected)
    show("excluded and failed", [name for name in failed if name in excluded])
    show("excluded and passed", [name for name in passed if name in excluded])
    passing_min = suite.passing_min - len(excluded) + len(suite.excluded_on(ALONE))
    enough = len(passed) >= passing_min or not target.is_ours
    if not enough:
        print(f"  {len(passed)} passed, at least {passing_min} must")
    return enough and not unexpected


def show(what: str, names: Iterable[str]) -> None:
    for name in names:
        print(f"  {what}: {name}")


if __name__ == "__main__":
    sys.exit(main())
