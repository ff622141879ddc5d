"""Hosts in network namespaces of Linux, each joined to one router, where packets are dropped.

    host ── cable ── router ── cable ── host

A thread enters a host, and what it starts there (processes, other threads) stays there. The router
drops packets from one host to another without a word, as a broken network does; each way is cut by
itself. Nothing of it is seen outside: the namespaces have no names, and go with their processes.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kafkalite import EmbeddedCluster
from kafkalite.embedded import EmbeddedBroker
from kafkalite.embedded_zookeeper import ZooKeeper

PORT = 9092
NEW_NETWORK = 0x40000000  # CLONE_NEWNET
THIS_THREAD = "/proc/thread-self/ns/net"
LIBC = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: int) -> None:
    if getattr(LIBC, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


class Host:
    """A namespace, for as long as this object or a process of it lives."""

    def __init__(self, number: int = 0) -> None:
        self.number, self.address = number, f"10.77.{number}.2"
        before = os.open(THIS_THREAD, os.O_RDONLY)
        try:
            _call("unshare", NEW_NETWORK)
            self._space = os.open(THIS_THREAD, os.O_RDONLY)
            _call("setns", before, NEW_NETWORK)
        finally:
            os.close(before)

    @property
    def path(self) -> str:
        """Its name for `ip`."""
        return f"/proc/{os.getpid()}/fd/{self._space}"

    @contextmanager
    def inside(self) -> Iterator[None]:
        """This thread is there, and so is what it starts."""
        before = os.open(THIS_THREAD, os.O_RDONLY)
        try:
            _call("setns", self._space, NEW_NETWORK)
            yield
        finally:
            _call("setns", before, NEW_NETWORK)
            os.close(before)

    def run(self, *command: str) -> None:
        """`ip …`, there."""
        with self.inside():
            subprocess.run(["ip", *command], check=True)

    def close(self) -> None:
        """Gives the namespace back."""
        os.close(self._space)


class NoNetwork(Exception):
    """The system lets nobody make namespaces here, or has no command for that."""


class Network:
    """So many hosts that reach each other. NoNetwork where that cannot be."""

    def __init__(self, count: int) -> None:
        if shutil.which("ip") is None:
            raise NoNetwork("there is no command ip")
        try:
            self._router = Host()
        except OSError as error:
            raise NoNetwork(str(error)) from error
        self._router.run("link", "set", "lo", "up")
        with self._router.inside():
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        self.hosts = [Host(number) for number in range(1, count + 1)]
        self._cuts: set[tuple[int, int]] = set()
        for host in self.hosts:
            self._join(host)

    def _join(self, host: Host) -> None:
        number, cable = host.number, f"to-{host.number}"
        peer = ("peer", "name", "eth", "netns", host.path)
        self._router.run("link", "add", cable, "type", "veth", *peer)
        self._router.run("addr", "add", f"10.77.{number}.1/24", "dev", cable)
        self._router.run("link", "set", cable, "up")
        host.run("addr", "add", f"{host.address}/24", "dev", "eth")
        host.run("link", "set", "lo", "up")
        host.run("link", "set", "eth", "up")
        host.run("route", "add", "default", "via", f"10.77.{number}.1")

    def cut(self, sources: Sequence[Host], targets: Sequence[Host]) -> None:
        """No packet of the sources reaches the targets any more. The other way stays."""
        for source in sources:
            for target in targets:
                if source is not target and (source.number, target.number) not in self._cuts:
                    self._rule("add", source.number, target.number)
                    self._cuts.add((source.number, target.number))

    def cut_both_ways(self, some: Sequence[Host], others: Sequence[Host]) -> None:
        """Neither hear the others."""
        self.cut(some, others)
        self.cut(others, some)

    def heal(self) -> None:
        """All packets arrive again."""
        for source, target in self._cuts:
            self._rule("del", source, target)
        self._cuts.clear()

    def _rule(self, what: str, source: int, target: int) -> None:
        pair = ("from", f"10.77.{source}.2", "to", f"10.77.{target}.2")
        self._router.run("rule", what, *pair, "blackhole")

    def close(self) -> None:
        """Gives the namespaces back; they go with the last process inside."""
        for host in (self._router, *self.hosts):
            host.close()

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _ZooKeeperOf(ZooKeeper):
    """A ZooKeeper on a host."""

    def __init__(self, host: Host, folder: Path) -> None:
        self._on = host
        super().__init__(folder, host=host.address, port=PORT)

    def start(self, *, is_waited_for: bool = True) -> None:
        with self._on.inside():
            super().start(is_waited_for=is_waited_for)


class SpreadCluster(EmbeddedCluster):
    """Each broker and ZooKeeper on a host of their own. The thread that makes it is on another."""

    def __init__(self, folder: Path, hosts: Sequence[Host], **more: Any) -> None:
        self.host_of_zookeeper, *others = hosts
        self.hosts = dict(enumerate(others, 1))
        super().__init__(folder, brokers=len(others), **more)

    def _new_zookeeper(self) -> ZooKeeper:
        return _ZooKeeperOf(self.host_of_zookeeper, self.data_dir / "zookeeper")

    def _new(self, node_id: int) -> EmbeddedBroker:
        host = self.hosts[node_id]
        self._listen[node_id] = f"{host.address}:{PORT}"
        with host.inside():
            return super()._new(node_id)
