"""What holds for every implementation of the coordination port."""

from __future__ import annotations

import asyncio

import pytest
from coordinations import (
    BACKENDS,
    SESSION_TIMEOUT_MS,
    SHARED,
    Backend,
    Clients,
    Heard,
    backend_of,
    until,
)

from kafkalite.core.cluster.coordination import (
    TRANSACTION_BYTES_MAX,
    VALUE_BYTES_MAX,
    Check,
    Coordination,
    Create,
    Delete,
    Entry,
    Operation,
    Session,
    Set,
)
from kafkalite.errors import (
    CoordinationError,
    CoordinationUnavailable,
    NodeExists,
    NoSuchNode,
    VersionMismatch,
)

MANY = 2_500


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return backend_of(request.param, request)


@pytest.fixture(params=SHARED)
def shared(request: pytest.FixtureRequest) -> Backend:
    """One whose tree has several clients."""
    return backend_of(request.param, request)


def test_values_have_versions_and_names_are_sorted(backend: Backend) -> None:
    async def story(clients: Clients) -> None:
        client = await clients.open()
        await client.transact([Create("/b", b""), Create("/a", b"1"), Create("/a/z", b"")])
        await client.transact([Set("/a", b"2", 0), Create("/e", b"x", is_ephemeral=True)])
        await client.transact([Set("/a", b"3"), Set("/e", b"y")])
        assert await client.get("/a") == Entry(b"3", 2)
        assert await client.get("/e") == Entry(b"y", 1, is_ephemeral=True)
        assert await client.children("/") == ["a", "b", "e"]
        assert await client.children("/a") == ["z"]
        await client.transact([Delete("/a/z", 0), Delete("/a")])
        await client.transact([Create("/a", b"again")])
        assert await client.get("/a") == Entry(b"again")
        assert (await client.get("/")).version == 0
        assert client.session is Session.CONNECTED

    backend.run(story)


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (Create("/a", b""), NodeExists),
        (Create("/b/c", b""), NoSuchNode),
        (Create("/e/c", b""), CoordinationError),
        (Create("b", b""), CoordinationError),
        (Create("/b/", b""), CoordinationError),
        (Create("//b", b""), CoordinationError),
        (Create("/a/../b", b""), CoordinationError),
        (Create("/b\n", b""), CoordinationError),
        (Create("/", b""), CoordinationError),
        (Delete("/"), CoordinationError),
        (Set("/b", b""), NoSuchNode),
        (Set("/a", b"", version=3), VersionMismatch),
        (Delete("/b"), NoSuchNode),
        (Delete("/a", version=1), VersionMismatch),
        (Delete("/a"), NodeExists),
        (Check("/a", 1), VersionMismatch),
        (Check("/a", 2**31), CoordinationError),
        (Set("/a", b"", -2), CoordinationError),
        (Check("/b", 0), NoSuchNode),
    ],
)
def test_one_that_fails_undoes_the_whole_transaction(
    backend: Backend, operation: Operation, error: type[Exception]
) -> None:
    async def story(clients: Clients) -> None:
        client = await clients.open()
        await client.transact([Create("/a", b"1"), Create("/a/child", b"")])
        await client.transact([Create("/e", b"", is_ephemeral=True)])
        for operations in ([Create("/new", b""), operation], [operation, Create("/new", b"")]):
            with pytest.raises(error) as caught:
                await client.transact(operations)
            assert error is CoordinationError or type(caught.value) is error
            assert operation.path.strip("\n") in str(caught.value)
        assert await client.get_many(["/new", "/b"]) == [None, None]
        assert await client.get("/a") == Entry(b"1")

    backend.run(story)


def test_a_transaction_sees_its_own_changes(backend: Backend) -> None:
    async def story(clients: Clients) -> None:
        client = await clients.open()
        created = [Create("/a", b""), Create("/a/b", b"")]
        await client.transact([*created, Set("/a", b"1", 0), Check("/a", 1), Delete("/a/b")])
        assert await client.get("/a") == Entry(b"1", 1)
        with pytest.raises(NodeExists):
            await client.transact([Create("/a/c", b""), Delete("/a")])
        await client.transact([Delete("/a"), Create("/a", b"new"), Create("/a/c", b"")])
        assert await client.get("/a") == Entry(b"new", 0)
        await client.transact([])

    backend.run(story)


def test_many_paths_are_read_at_once_in_their_order(backend: Backend) -> None:
    async def story(clients: Clients) -> None:
        client = await clients.open()
        await client.transact([Create("/t", b"")])
        numbers = range(MANY)
        for first in range(0, MANY, 500):
            some = numbers[first : first + 500]
            await client.transact([Create(f"/t/{n}", b"%d" % n) for n in some])
        found = await client.get_many([f"/t/{n}" for n in (*numbers, "none")])
        assert found == [*(Entry(b"%d" % n) for n in numbers), None]
        names = await client.children_many(["/t/7", "/t", "/none"])
        assert names == [[], sorted(map(str, numbers)), None]
        assert await client.get_many([]) == []
        for read in (client.get("/none"), client.children("/none")):
            with pytest.raises(NoSuchNode, match="/none does not exist"):
                await read
        with pytest.raises(CoordinationError, match="'t' is no path"):
            await client.get("t")
        await client.transact([Delete(f"/t/{n}") for n in numbers] + [Delete("/t")])
        assert await client.children("/") == []

    backend.run(story)


def test_a_value_of_the_largest_size_fits_and_more_is_refused(backend: Backend) -> None:
    async def story(clients: Clients) -> None:
        client = await clients.open()
        await client.transact([Create("/epoch", b"")])
        large = b"x" * VALUE_BYTES_MAX
        await client.transact([Check("/epoch", 0), Create("/large", large)])
        assert (await client.get("/large")).value == large
        with pytest.raises(CoordinationError, match=f"at most {TRANSACTION_BYTES_MAX} fit"):
            await client.transact([Set("/large", b""), Create("/more", b"x" * 1_020_000)])
        assert (await client.get("/large")).version == 0
        assert client.session is Session.CONNECTED

    backend.run(story)


def test_transactions_at_once_are_taken_in_their_order(backend: Backend) -> None:
    async def story(clients: Clients) -> None:
        client = await clients.open()
        await client.transact([Create("/a", b"")])
        writes = (client.transact([Set("/a", b"%d" % n, n)]) for n in range(300))
        await asyncio.gather(*writes)
        assert await client.get("/a") == Entry(b"299", 300)

    backend.run(story)


def test_watchers_hear_of_values_children_and_existence(backend: Backend) -> None:
    async def story(clients: Clients) -> None:
        client = await clients.open()
        await client.transact([Create("/a", b"")])
        heard: list[str] = []
        stop = client.watch("/a", heard.append)
        client.watch("/later", heard.append)
        before = "/a"
        for operation, path in (
            (Set("/a", b"1"), "/a"),
            (Create("/a/b", b""), "/a"),
            (Delete("/a/b"), "/a"),
            (Set("/a", b"2"), "/a"),
            (Create("/later", b""), "/later"),
            (Create("/later/b", b""), "/later"),
            (Set("/later", b"1"), "/later"),
            (Delete("/later/b"), "/later"),
            (Delete("/later"), "/later"),
            (Create("/later", b""), "/later"),
            (Delete("/a"), "/a"),
            (Create("/a", b""), "/a"),
        ):
            heard.clear()
            await client.transact([operation])
            await until(lambda: path in heard)  # noqa: B023
            # ZooKeeper tells of a value and of children apart, the second perhaps only now.
            assert set(heard) <= {path, before}, operation
            before = path
        await client.transact([Create("/a/c", b"")])
        await until(lambda: heard)
        await client.transact([Set("/a/c", b"of a child")])
        stop()
        stop()
        heard.clear()
        await client.transact([Set("/a", b"3"), Set("/later", b"2")])
        await until(lambda: heard)
        assert set(heard) == {"/later"}

    backend.run(story)


def test_a_watcher_that_reads_anew_misses_no_change(backend: Backend) -> None:
    async def story(clients: Clients) -> None:
        client = await clients.open()
        await client.transact([Create("/a", b"0")])
        seen: list[bytes] = []
        changed = asyncio.Event()
        client.watch("/a", lambda _: changed.set())

        async def follow() -> None:
            while not seen or seen[-1] != b"99":
                await changed.wait()
                changed.clear()
                seen.append((await client.get("/a")).value)

        following = asyncio.create_task(follow())
        for number in range(1, 100):
            await client.transact([Set("/a", b"%d" % number)])
            if number % 7 == 0:
                await asyncio.sleep(0.002)
        async with asyncio.timeout(20):
            await following
        assert seen == sorted(seen, key=int)

    backend.run(story)


def test_a_watcher_that_fails_keeps_no_other_from_hearing(shared: Backend) -> None:
    async def story(clients: Clients) -> None:
        client = await clients.open()
        heard: list[str] = []
        client.watch("/a", lambda _: 1 // 0)  # type: ignore[arg-type,return-value]
        client.watch("/a", heard.append)
        for operation in (Create("/a", b""), Set("/a", b"1")):
            heard.clear()
            await client.transact([operation])
            await until(lambda: heard)

    shared.run(story)


def test_a_closed_client_refuses(backend: Backend) -> None:
    async def story(clients: Clients) -> None:
        client = await clients.open()
        await client.transact([Create("/a", b"")])
        pending = asyncio.create_task(client.transact([Set("/a", b"1")]))
        await asyncio.sleep(0)
        await client.close()
        await client.close()
        await asyncio.gather(pending, return_exceptions=True)
        for late in (
            client.get("/a"),
            client.children("/a"),
            client.get_many(["/a"]),
            client.transact([Set("/a", b"")]),
        ):
            with pytest.raises(CoordinationUnavailable, match="closed"):
                await late

    backend.run(story)


# -- several clients


def test_clients_see_one_tree(shared: Backend) -> None:
    async def story(clients: Clients) -> None:
        first, second = await clients.open(), await clients.open()
        heard: list[str] = []
        first.watch("/", heard.append)
        await first.children("/")
        await second.transact([Create("/a", b"1")])
        await until(lambda: heard)
        assert await first.get("/a") == Entry(b"1")
        with pytest.raises(NodeExists):
            await first.transact([Create("/a", b"2")])

    shared.run(story)


def test_ephemeral_paths_go_with_the_client_that_closes(shared: Backend) -> None:
    async def story(clients: Clients) -> None:
        first, second = await clients.open(), await clients.open()
        await first.transact([Create("/brokers", b"")])
        await second.transact([Create("/brokers/2", b"", is_ephemeral=True)])
        await first.transact([Create("/brokers/1", b"", is_ephemeral=True)])
        await first.transact([Set("/brokers/2", b"by another")])
        heard: list[str] = []
        first.watch("/brokers", heard.append)
        assert await first.children("/brokers") == ["1", "2"]
        begin = asyncio.get_running_loop().time()
        await second.close()
        await until(lambda: heard)
        assert await first.children("/brokers") == ["1"]
        took = asyncio.get_running_loop().time() - begin
        assert took < SESSION_TIMEOUT_MS / 2_000, "at once, not after a timeout"
        with pytest.raises(NoSuchNode):
            await first.transact([Set("/brokers/2", b"")])

    shared.run(story)


async def elected(client: Coordination, broker: int) -> bool:
    """Tries to become the controller, as a broker does."""
    epoch = await client.get("/controller_epoch")
    try:
        await client.transact(
            [
                Create("/controller", b"%d" % broker, is_ephemeral=True),
                Set("/controller_epoch", b"%d" % (int(epoch.value) + 1), epoch.version),
            ]
        )
    except (NodeExists, VersionMismatch):
        return False
    return True


def test_one_of_many_is_elected_and_its_predecessor_writes_no_more(shared: Backend) -> None:
    async def story(clients: Clients) -> None:
        candidates = [await clients.open() for _ in range(4)]
        await candidates[0].transact([Create("/controller_epoch", b"0"), Create("/topics", b"")])
        tried = [elected(client, number) for number, client in enumerate(candidates)]
        won = await asyncio.gather(*tried)
        assert sum(won) == 1
        old = candidates.pop(won.index(True))
        guard = Check("/controller_epoch", 1)
        await old.transact([guard, Create("/topics/a", b"")])
        await clients.expire(old)
        new = candidates[0]
        while "controller" in await new.children("/"):
            await asyncio.sleep(0.01)
        assert await elected(new, 9)
        with pytest.raises(VersionMismatch, match="/controller_epoch"):
            await old.transact([guard, Create("/topics/late", b"")])
        await new.transact([Check("/controller_epoch", 2), Create("/topics/b", b"")])
        assert await new.children("/topics") == ["a", "b"]

    shared.run(story)


def test_a_session_that_ended_is_followed_by_a_new_one(shared: Backend) -> None:
    async def story(clients: Clients) -> None:
        client, other = await clients.open(), await clients.open()
        await client.transact([Create("/e", b"", is_ephemeral=True), Create("/a", b"")])
        heard_states = Heard(client)
        heard: list[str] = []
        client.watch("/a", heard.append)
        watched: list[str] = []
        other.watch("/e", watched.append)
        assert (await other.get("/e")).is_ephemeral
        await clients.expire(client)
        await until(lambda: Session.CONNECTED in heard_states)
        assert heard_states[-2:] == [Session.EXPIRED, Session.CONNECTED]
        assert client.session is Session.CONNECTED
        assert await client.get_many(["/e", "/a"]) == [None, Entry(b"")]
        await until(lambda: watched)
        await until(lambda: heard)  # without a change: there may have been one
        await client.transact([Create("/e", b"again", is_ephemeral=True)])
        heard.clear()
        await other.transact([Set("/a", b"1")])
        await until(lambda: heard)

    shared.run(story)
