"""`kafkalite cluster start`: brokers and a ZooKeeper as child processes, in the foreground.   [IO]

A child that dies is started again after a pause, which grows with each death that comes soon after
a start. A broker that is silent for its session is killed by its watchdog, and started again.
stdout gets one line as soon as clients can connect; stderr gets the logs of the brokers, each line
with the broker's name. SIGTERM and SIGINT stop the brokers one after the other, then ZooKeeper;
with --exit-with-parent the end of stdin does so too. A signal also ends the start, at once.

Owns   the supervision: when a child is started again, and when it is given up.
Fails  with one line: a directory in use, an address in use, no Java. With exit code 1 once no
       broker is left that could be started again.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from kafkalite.cli.options import examples, parse_pairs
from kafkalite.cli.output import say, to_json
from kafkalite.cli.watchdog import check_supported, is_supported
from kafkalite.embedded_cluster import BROKERS, EmbeddedCluster
from kafkalite.errors import KafkaliteError

LISTEN: Final = "127.0.0.1:9092"
STOPPING: Final = (signal.SIGINT, signal.SIGTERM)
NOBODY_LEFT: Final = "no broker is left"
LOOK_SECONDS: Final = 0.1  # between looks at a child
FIRST_PAUSE_SECONDS: Final = 0.5
PAUSE_SECONDS_MAX: Final = 30.0
SOON_SECONDS: Final = 60.0  # a death this soon after a start counts
DEATHS_MAX: Final = 10  # so soon, one after the other: then the child stays down
# The first member of a group waits for others: they are started by hand, not by one process.
GROUPS: Final = {"group.initial.rebalance.delay.ms": "3000"}

EPILOG = examples(
    "kafkalite cluster start --data-dir ./cluster",
    "kafkalite cluster start --data-dir ./cluster --brokers 5 --racks a,b,c,a,b "
    "--override num.partitions=6",
)


def start(
    data_dir: Annotated[
        Path, typer.Option(help="Where brokers and ZooKeeper keep their data; made if not there.")
    ],
    brokers: Annotated[int, typer.Option(min=1, help="Number of brokers.")] = BROKERS,
    listen: Annotated[
        str,
        typer.Option(
            help="HOST:PORT of the first broker; the others take the ports after it. Port 0: each "
            "takes a free one."
        ),
    ] = LISTEN,
    racks: Annotated[
        str | None, typer.Option(help="The brokers' racks, with commas: a,b,c.")
    ] = None,
    override: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE for every broker; may be repeated.")
    ] = None,
    exit_with_parent: Annotated[
        bool, typer.Option("--exit-with-parent", help="Stop when stdin ends.")
    ] = False,
    watchdog: Annotated[
        bool | None,
        typer.Option(
            "--watchdog/--no-watchdog",
            help="Kill a broker that was silent for zookeeper.session.timeout.ms, and start it "
            "again.",
            show_default="on where the system has pidfds",
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Say that it is ready as one line of JSON.")
    ] = False,
) -> None:
    """Run brokers and a ZooKeeper of their own on this machine.

    Ctrl-C or SIGTERM stops them all. A broker that dies is started again. Topics get three
    replicas, and acks=all waits for two, where there are so many brokers.
    """
    if watchdog:
        check_supported()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in STOPPING:
        signal.signal(number, _leave_at_once)  # while it starts: what runs is stopped
    cluster = EmbeddedCluster(
        data_dir,
        brokers=brokers,
        listen=listen,
        racks=[rack.strip() or None for rack in racks.split(",")] if racks else (),
        overrides=GROUPS | parse_pairs(override, "--override"),
        watchdog=is_supported() if watchdog is None else watchdog,
        on_log=lambda name, line: say(f"{name}: {line}"),
    )
    raise typer.Exit(_serve(cluster, exit_with_parent=exit_with_parent, json=json))


def _serve(cluster: EmbeddedCluster, *, exit_with_parent: bool, json: bool) -> int:
    """Keeps the cluster up until there is a reason to stop; the exit code."""
    stop = _Stop()
    keepers: list[_Keeper] = []
    try:
        for number in STOPPING:
            signal.signal(number, lambda n, _: stop.want(signal.Signals(n).name))
        if exit_with_parent:
            threading.Thread(target=_wait_for_the_end_of_stdin, args=(stop,), daemon=True).start()
        _say_ready(cluster, json)
        keepers = _keep(cluster, stop)
        stop.wait()
    finally:
        began = time.monotonic()
        stop.want("an error")
        cluster.close()
        for keeper in keepers:
            keeper.thread.join()
        say(f"{stop.reason}, stopped in {time.monotonic() - began:.2f} s")
    return 1 if stop.reason == NOBODY_LEFT else 0


class _Stop:
    """The first reason to stop counts."""

    def __init__(self) -> None:
        self.reason = ""
        self._is_wanted = threading.Event()

    def want(self, reason: str) -> None:
        """Asks for the stop."""
        self.reason = self.reason or reason
        self._is_wanted.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Whether a stop is wanted, after so many seconds at the latest."""
        return self._is_wanted.wait(seconds)


@dataclass(slots=True)
class Restarts:
    """How long a child waits before its next start."""

    deaths: int = 0  # soon after a start, one after the other

    def died(self, lived_seconds: float) -> float | None:
        """The pause before the next start; None if there is to be none."""
        self.deaths = 1 if lived_seconds >= SOON_SECONDS else self.deaths + 1
        if self.deaths > DEATHS_MAX:
            return None
        pause: float = FIRST_PAUSE_SECONDS * 2 ** (self.deaths - 1)
        return min(pause, PAUSE_SECONDS_MAX)


class _Keeper:
    """A thread that starts one child again whenever it has died."""

    def __init__(
        self,
        name: str,
        stop: _Stop,
        *,
        is_running: Callable[[], bool],
        why: Callable[[], str],
        start: Callable[[], None],
        give_up: Callable[[str], None],
    ) -> None:
        self._name, self._stop = name, stop
        self._is_running, self._why, self._start = is_running, why, start
        self._give_up = give_up
        self.thread = threading.Thread(target=self._run, name=f"keeps {name}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        restarts, started = Restarts(), time.monotonic()
        while not self._stop.wait(LOOK_SECONDS):
            if self._is_running():
                continue
            pause = restarts.died(time.monotonic() - started)
            if pause is None:
                say(f"{self._name} {self._why()}, {DEATHS_MAX} times in a row: it stays down")
                self._give_up(self._name)
                return
            say(f"{self._name} {self._why()}, it starts again in {pause:g} s")
            if self._stop.wait(pause):
                return
            started = time.monotonic()
            try:
                self._start()
            except (KafkaliteError, OSError) as error:  # the latter: no process, no descriptor left
                if not self._stop.wait(0):
                    say(f"{self._name}: {error}")


def _keep(cluster: EmbeddedCluster, stop: _Stop) -> list[_Keeper]:
    """A keeper for each child. Without brokers, or without ZooKeeper, there is no cluster left."""
    up = set(cluster.node_ids)
    lock = threading.Lock()

    def keep(node_id: int) -> _Keeper:
        def start() -> None:
            cluster.stop(node_id)  # what is left of the dead one
            cluster.start(node_id)

        def give_up(_: str) -> None:
            with lock:
                up.discard(node_id)
                if not up:
                    stop.want(NOBODY_LEFT)

        return _Keeper(
            f"broker {node_id}",
            stop,
            is_running=lambda: cluster.is_running(node_id),
            why=lambda: _ending(cluster.exit_code(node_id)),
            start=start,
            give_up=give_up,
        )

    zookeeper = cluster.zookeeper
    assert zookeeper is not None
    keeper = _Keeper(
        "ZooKeeper",
        stop,
        is_running=lambda: zookeeper.is_running,
        why=lambda: "died",
        start=cluster.start_zookeeper,
        give_up=lambda _: say("brokers go on, but nobody decides: topics and leaders stay"),
    )
    return [*map(keep, cluster.node_ids), keeper]


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return "did not start" if code is None else f"ended with code {code}"


def _leave_at_once(number: int, _: object) -> None:
    for each in STOPPING:
        signal.signal(each, signal.SIG_IGN)
    say(f"{signal.Signals(number).name} before the cluster was ready, it stops")
    raise SystemExit(0)


def _wait_for_the_end_of_stdin(stop: _Stop) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    stop.want("the end of stdin")


def _say_ready(cluster: EmbeddedCluster, json: bool) -> None:
    """The one line on stdout: clients can connect."""
    assert cluster.zookeeper is not None
    if json:
        brokers = [
            {"id": node_id, "address": cluster.address(node_id), "pid": cluster.pid(node_id)}
            for node_id in cluster.node_ids
        ]
        ready = {
            "address": cluster.bootstrap_servers,
            "brokers": brokers,
            "zookeeper": cluster.zookeeper.address,
            "data_dir": str(cluster.data_dir),
            "pid": os.getpid(),
        }
        print(to_json(ready).decode(), flush=True)
        return
    address = cluster.bootstrap_servers
    print(f"kafkalite is ready at {address} (data in {cluster.data_dir})", flush=True)
