"""The fake of ZooKeeper: sessions, cuts, lost answers, and controllers under all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random

import pytest
from coordinations import Heard

from kafkalite.core.cluster.coordination import Check, Create, Delete, Entry, Session, Set
from kafkalite.core.cluster.image import ClusterRecord
from kafkalite.core.cluster.store import ClusterStore
from kafkalite.errors import (
    CoordinationError,
    CoordinationUnavailable,
    NodeExists,
    OutcomeUnknown,
    VersionMismatch,
)
from kafkalite.testing.coordination import CoordinationServer, SimulatedCoordination
from kafkalite.testing.simulation import Host, World

TIMEOUT_MS = 6_000
SECONDS = TIMEOUT_MS / 1000


class Place:
    """A server, and clients on hosts of their own."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.notes: list[str] = []
        self.machine = world.host("zookeeper")
        self.server = CoordinationServer(
            self.machine.loop,
            Random(seed),
            note=lambda what: self.notes.append(f"{world.seconds:.6f} {what}"),
        )
        self.hosts: dict[str, Host] = {}

    def client(self, name: str) -> SimulatedCoordination:
        self.hosts[name] = host = self.world.host(name)
        return self.server.client(name, host.loop, session_timeout_ms=TIMEOUT_MS)

    def until(self, client: SimulatedCoordination, session: Session) -> None:
        self.world.run(lambda: client.session is session, 60)


@pytest.fixture
def place() -> Iterator[Place]:
    with World() as world:
        yield Place(world, 1)


def test_a_change_during_a_short_cut_is_heard_of_after_it(place: Place) -> None:
    """The connection that lost the news is dead, and the next one brings it."""
    one, two = place.client("one"), place.client("two")
    place.until(one, Session.CONNECTED)
    heard: list[str] = []
    one.watch("/a", heard.append)
    place.world.pass_seconds(0.1)
    place.server.cut("one")
    place.world.result(place.hosts["two"], two.transact([Create("/a", b"")]))
    place.world.pass_seconds(0.1)
    place.server.restore()
    assert heard == []
    place.world.run(lambda: "/a" in heard, SECONDS)
    assert place.server.sessions() == {"one": 1, "two": 1}, "its session goes on"


@pytest.mark.parametrize("seconds", [4.0, 9.0])
def test_a_paused_host_loses_its_session_after_the_time_out(place: Place, seconds: float) -> None:
    one, two = place.client("one"), place.client("two")
    heard, changes = Heard(one), list[str]()
    path = [Create("/e", b"", is_ephemeral=True)]
    place.world.result(place.hosts["one"], one.transact(path))
    two.watch("/e", changes.append)
    place.world.pass_seconds(1)
    changes.clear()
    place.hosts["one"].pause()
    place.world.pass_seconds(seconds)
    is_lost = seconds > SECONDS
    assert bool(changes) == is_lost
    assert heard == [Session.CONNECTED], "it cannot know yet"
    place.hosts["one"].go_on()
    place.world.pass_seconds(3)
    assert one.session is Session.CONNECTED
    assert (Session.EXPIRED in heard) == is_lost
    (entry,) = place.world.result(place.hosts["two"], two.get_many(["/e"]))
    assert (entry is None) == is_lost


def test_a_killed_host_loses_its_session_after_the_time_out(place: Place) -> None:
    one, two = place.client("one"), place.client("two")
    place.world.result(place.hosts["one"], one.transact([Create("/e", b"", is_ephemeral=True)]))
    place.until(two, Session.CONNECTED)
    place.hosts["one"].kill()
    place.world.pass_seconds(SECONDS - 2.1)  # a heartbeat was up to a third of it ago
    assert place.server.sessions() == {"one": 1, "two": 1}
    place.world.pass_seconds(2.2)
    assert place.server.sessions() == {"two": 1}
    assert place.world.result(place.hosts["two"], two.children("/")) == []


@pytest.mark.parametrize("seconds", [5.0, 20.0])
def test_a_client_that_is_cut_off_knows_nothing_until_it_is_back(
    place: Place, seconds: float
) -> None:
    one = place.client("one")
    heard, host = Heard(one), place.hosts["one"]
    place.world.result(host, one.transact([Create("/a", b""), Create("/e", b"", True)]))
    place.server.cut("one")
    begin = place.world.seconds
    with pytest.raises(OutcomeUnknown):
        place.world.result(host, one.transact([Set("/a", b"1")]))
    assert heard == [Session.CONNECTED, Session.SUSPENDED]
    with pytest.raises(CoordinationUnavailable, match="of one: no connection for 6 s"):
        place.world.result(host, one.get("/a"))
    assert place.world.seconds - begin < 2 * SECONDS + 1
    place.world.pass_seconds(max(0.0, seconds - (place.world.seconds - begin)))
    place.server.restore()
    place.until(one, Session.CONNECTED)
    assert heard[2:] == [Session.EXPIRED, Session.CONNECTED]
    assert place.world.result(host, one.get_many(["/a", "/e"])) == [Entry(b""), None]


def test_a_broken_connection_comes_back_with_the_same_session(place: Place) -> None:
    one = place.client("one")
    heard, changes, host = Heard(one), list[str](), place.hosts["one"]
    place.world.result(host, one.transact([Create("/a", b""), Create("/e", b"", True)]))
    one.watch("/a", changes.append)
    place.server.reset("one")
    reading = host.spawn(one.get("/e"))
    place.until(one, Session.SUSPENDED)
    place.until(one, Session.CONNECTED)
    place.world.run(reading.done, 1)
    assert reading.result().is_ephemeral, "a read is sent again"
    assert heard == [Session.CONNECTED, Session.SUSPENDED, Session.CONNECTED]
    assert changes == ["/a"], "there may have been a change"


def test_sessions_outlive_the_server(place: Place) -> None:
    one = place.client("one")
    heard, host = Heard(one), place.hosts["one"]
    place.world.result(host, one.transact([Create("/e", b"", is_ephemeral=True)]))
    place.server.stop()
    place.world.pass_seconds(30)
    assert one.session is Session.SUSPENDED
    place.server.start()
    place.world.pass_seconds(0.5)
    assert heard == [Session.CONNECTED, Session.SUSPENDED, Session.CONNECTED]
    assert place.world.result(host, one.get("/e")).is_ephemeral


def test_a_server_that_pauses_answers_late(place: Place) -> None:
    one = place.client("one")
    host = place.hosts["one"]
    place.world.result(host, one.transact([Create("/a", b"")]))
    place.machine.pause()
    with pytest.raises(OutcomeUnknown):
        place.world.result(host, one.transact([Set("/a", b"1")]))
    place.machine.go_on()
    place.world.pass_seconds(1)
    entry = place.world.result(host, one.get("/a"))
    place.world.pass_seconds(30)
    assert place.world.result(host, one.get("/a")) == entry
    assert entry == Entry(b"1", 1), "it was on its way"


def test_closing_is_bounded_without_a_connection(place: Place) -> None:
    one = place.client("one")
    host = place.hosts["one"]
    place.world.result(host, one.transact([Create("/a", b"")]))
    place.server.cut("one")
    begin = place.world.seconds
    writing = host.spawn(one.transact([Set("/a", b"1")]))
    place.world.result(host, one.close())
    assert place.world.seconds - begin < SECONDS
    place.world.run(writing.done, 1)
    assert isinstance(writing.exception(), OutcomeUnknown)


def test_lost_answers_are_of_writes_that_happened_and_of_others(place: Place) -> None:
    one = place.client("one")
    place.server.lost_answers = 0.5
    outcomes = {"answered": 0, "done": 0, "not done": 0}

    async def story() -> None:
        version = 0
        while True:
            try:
                await one.transact([Create("/a", b"")])
                break
            except OutcomeUnknown:
                continue
            except NodeExists:
                break
        for _ in range(200):
            try:
                await one.transact([Set("/a", b"", version)])
                version += 1
                outcomes["answered"] += 1
            except OutcomeUnknown:
                found = (await one.get("/a")).version
                assert found in (version, version + 1)
                outcomes["done" if found > version else "not done"] += 1
                version = found

    place.world.result(place.hosts["one"], story(), 3_600)
    assert min(outcomes.values()) > 20, outcomes


class Controller:
    """A broker that wants to be the controller, and writes numbered records while it is."""

    def __init__(self, name: str, client: SimulatedCoordination, random: Random) -> None:
        self.name, self.client, self.random = name, client, random
        self.written: list[tuple[int, str]] = []  # acknowledged: epoch and path
        self.reigns: list[int] = []
        self.checked = 0  # trees that were as expected

    async def run(self, until: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < until:
            try:
                await self.reign(until)
            except CoordinationError:
                await asyncio.sleep(self.random.uniform(0.05, 0.5))

    async def reign(self, until: float) -> None:
        epoch = await self.client.get("/controller_epoch")
        number = int(epoch.value) + 1
        elect = [
            Create("/controller", self.name.encode(), is_ephemeral=True),
            Set("/controller_epoch", b"%d" % number, epoch.version),
        ]
        try:
            await self.client.transact(elect)
        except OutcomeUnknown:
            holder, now = await self.client.get_many(["/controller", "/controller_epoch"])
            assert now is not None
            if holder is None or (holder.value, now.value) != (self.name.encode(), b"%d" % number):
                return
        self.reigns.append(number)
        store = ClusterStore(self.client, guard=Check("/controller_epoch", epoch.version + 1))
        known = {record.path: record.value for record in await store.load()}
        loop = asyncio.get_running_loop()
        for count in range(self.random.randint(1, 40)):
            if loop.time() > until:
                break
            path = f"/topics/t{self.random.randrange(12)}"
            value = f"{number}.{count}".encode() if self.random.random() < 0.8 else None
            await self.write(store, ClusterRecord(path, value), number)
            known[path] = value
            await asyncio.sleep(self.random.uniform(0, 0.3))
        while store.is_unsettled:
            await store.settle()
        again = await ClusterStore(self.client).load()
        if (await self.client.get("/controller_epoch")).version == epoch.version + 1:
            present = {r.path: r.value for r in again if r.path.count("/") > 1}
            expected = {
                path: value for path, value in known.items() if value and path.count("/") > 1
            }
            assert present == expected, "the tree is what this controller believes"
            self.checked += 1
        await self.client.transact(
            [Check("/controller_epoch", epoch.version + 1), Delete("/controller")]
        )

    async def write(self, store: ClusterStore, record: ClusterRecord, number: int) -> None:
        try:
            await store.append([record])
        except (OutcomeUnknown, CoordinationUnavailable):
            if not store.is_unsettled:
                raise VersionMismatch("not written: there was no connection") from None
            while store.is_unsettled:
                try:
                    if not await store.settle():
                        raise VersionMismatch("not written") from None
                except CoordinationUnavailable:
                    continue
        if record.value is not None:
            self.written.append((number, f"{record.path}={record.value.decode()}"))


def history(seed: int) -> tuple[list[str], list[Controller]]:
    """Three candidates, and every fault that the fake has."""
    random = Random(seed)
    with World() as world:
        place = Place(world, seed)
        founder = place.client("founder")
        roots = [Create("/controller_epoch", b"0"), Create("/topics", b"")]
        world.result(place.hosts["founder"], founder.transact(roots))
        place.server.lost_answers = random.choice([0, 0.05, 0.3])
        controllers = [
            Controller(name, place.client(name), Random(f"{seed}/{name}"))
            for name in ("one", "two", "three")
        ]
        end = place.machine.loop.time() + 120
        tasks = [place.hosts[each.name].spawn(each.run(end)) for each in controllers]
        while not all(task.done() for task in tasks):
            name = random.choice(["one", "two", "three"])
            host, fault = place.hosts[name], random.randrange(6)
            if fault == 0:
                place.server.cut(name)
            elif fault == 1:
                place.server.reset(name)
            elif fault == 2:
                place.server.expire(name)
            elif fault == 3:
                host.pause()
            elif fault == 4:
                place.server.stop()
            else:
                place.machine.pause()
            world.pass_seconds(random.choice([0.01, 1, 4, 9]))
            place.server.restore()
            host.go_on()
            place.machine.go_on()
            if fault == 4:
                place.server.start()
            world.pass_seconds(random.uniform(0, 10))
        for task in tasks:
            task.result()
        return place.notes, controllers


@pytest.mark.parametrize("seed", range(12))
def test_controllers_under_faults_never_reign_together_and_know_what_they_wrote(seed: int) -> None:
    _, controllers = history(seed)
    reigns = [number for each in controllers for number in each.reigns]
    assert len(reigns) == len(set(reigns)), "an epoch has one controller"
    assert sum(len(each.written) for each in controllers) > 20
    assert sum(each.checked for each in controllers) > 1
    by_epoch = {number: each.name for each in controllers for number in each.reigns}
    for each in controllers:
        assert {by_epoch[number] for number, _ in each.written} <= {each.name}


def test_the_same_seed_is_the_same_history() -> None:
    first, second = history(3), history(3)
    assert first[0] == second[0]
    assert [each.written for each in first[1]] == [each.written for each in second[1]]
    assert history(4)[0] != first[0]
