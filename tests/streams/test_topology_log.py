"""A changed topology does not go on over old state in silence: claims, refusals, warnings."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator

import pytest

from kafkalite.clients import Admin, NewTopic, Producer
from kafkalite.clients.cluster import Client
from kafkalite.core.types import Columns
from kafkalite.embedded import EmbeddedBroker
from kafkalite.errors import TopologyError
from kafkalite.serde import MemoryRegistry
from kafkalite.streams import Streams, int64, string, tumbling
from kafkalite.streams import json as json_serde
from kafkalite.streams.fingerprint import Fingerprint, RepartitionPrint
from kafkalite.streams.local.compile import compile_topology
from kafkalite.streams.local.holder import Holder
from kafkalite.streams.local.topology_log import TopologyLog, fold, internal_topics
from kafkalite.streams.local.worker import Progress, Worker, WorkerConfig
from kafkalite.streams.stream import Stream

A, B, C = (Fingerprint(repartitions={name: RepartitionPrint("k", "v")}) for name in "abc")


SPARK = Holder("spark", "/checkpoint", "a1")


def claim(fingerprint: Fingerprint, replaces: int | None) -> bytes:
    document = {"replaces": replaces, "fingerprint": json.loads(fingerprint.encode())}
    return json.dumps(document).encode()


class TestFold:
    def test_a_claim_counts_if_it_replaces_the_one_in_force(self) -> None:
        records = [(0, claim(A, None)), (1, claim(B, 0)), (2, claim(C, 0))]
        in_force = fold(records)
        assert in_force is not None
        assert (in_force.offset, in_force.fingerprint) == (1, B)

    def test_of_two_first_claims_the_log_decides(self) -> None:
        in_force = fold([(4, claim(A, None)), (5, claim(B, None))])
        assert in_force is not None
        assert in_force.fingerprint == A

    def test_an_empty_log(self) -> None:
        assert fold([]) is None

    def test_a_claim_names_the_engine_that_has_the_state(self) -> None:
        document = json.loads(claim(A, 0)) | {"holder": SPARK.encode()}
        in_force = fold([(0, claim(A, None)), (1, json.dumps(document).encode())])
        assert in_force is not None
        assert in_force.holder == SPARK

    @pytest.mark.parametrize(
        "value",
        [
            None,
            b"",
            b"{}",
            b'{"replaces": 1, "fingerprint": 2}',
            b'{"replaces": null, "fingerprint": null, "holder": {"engine": 1}}',
        ],
    )
    def test_a_record_that_is_no_claim_is_named(self, value: bytes | None) -> None:
        with pytest.raises(TopologyError, match="offset 7 of the topology log cannot be read"):
            fold([(7, value)])


def test_internal_topics_of_an_application_whose_id_begins_alike_are_not_ours() -> None:
    existing = ["a-x-changelog", "a-b-x-changelog", "a-b-topology", "a-topology", "a-out", "ab"]
    assert internal_topics("a", existing) == ["a-topology", "a-x-changelog"]
    assert internal_topics("a-b", existing) == ["a-b-topology", "a-b-x-changelog"]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


Build = Callable[[Stream], object]


class Application:
    """Topologies under one id, run to the end of a topic of their own."""

    def __init__(self, address: str, name: str) -> None:
        self.address = address
        self.name = name

    async def send(self, *keys: str) -> None:
        async with Admin(self.address) as admin:
            if f"{self.name}-in" not in await admin.list_topics():
                await admin.create_topics([NewTopic(f"{self.name}-{t}", 2) for t in ("in", "out")])
        async with Producer(self.address) as producer:
            data = [key.encode() for key in keys]
            await producer.send_columns(f"{self.name}-in", Columns(data, data, [0] * len(data)))

    def worker(self, build: Build) -> Worker:
        app = Streams(self.name, key=string(), value=string())
        build(app.stream(f"{self.name}-in"))
        config = WorkerConfig(commit_interval_ms=50)
        return Worker(app.plan(), self.address, MemoryRegistry(), config)

    async def run(self, build: Build) -> Progress:
        return await asyncio.wait_for(self.worker(build).run(until_caught_up=True), 60)

    async def topics(self) -> list[str]:
        async with Admin(self.address) as admin:
            return [name for name in await admin.list_topics() if name.startswith(self.name)]


def counting(name: str) -> Build:
    return lambda s: s.group_by_key().count(name=name, value=int64())


@pytest.mark.slow
class TestOverABroker:
    def test_no_worker_runs_while_another_engine_has_the_state(self, address: str) -> None:
        async def scenario() -> None:
            app = Application(address, "moved")
            await app.send("a")
            await app.run(counting("n"))
            plan = app.worker(counting("n")).plan
            subs = compile_topology(plan)
            async with Client(address) as client, Admin(client) as admin:

                def log(holder: Holder | None) -> TopologyLog:
                    return TopologyLog(client, admin, plan, subs, holder)

                await log(None).hand_over(SPARK)
                await app.send("b")
                with pytest.raises(TopologyError) as caught:
                    await app.run(counting("n"))
                assert str(caught.value) == (
                    "moved: Spark holds the state, in /checkpoint: `kafkalite-streams export-state "
                    "FILE.py --checkpoint /checkpoint` moves it back"
                )
                with pytest.raises(TopologyError, match="in another checkpoint than /other"):
                    await log(Holder("spark", "/other", "b2")).check()
                await log(SPARK).check()
                await log(SPARK).hand_over(SPARK.leaving())
                with pytest.raises(TopologyError, match="on its way from Spark"):
                    await log(SPARK).check()
                await log(SPARK.leaving()).hand_over(None)
                with pytest.raises(TopologyError, match="--from local` moves it"):
                    await log(SPARK).claim()
            assert (await app.run(counting("n"))).records == 1

        asyncio.run(scenario())

    def test_another_window_under_one_name_is_refused_with_the_ways_out(self, address: str) -> None:
        async def scenario() -> None:
            app = Application(address, "windows")
            await app.send("a", "b")

            def windows(size: str) -> Build:
                return lambda s: s.group_by_key().window(tumbling(size)).count(name="n")

            await app.run(windows("1m"))
            with pytest.raises(TopologyError) as caught:
                await app.run(windows("1h"))
            assert str(caught.value) == (
                "windows: its state is of another topology: store 'n': its window was "
                "tumbling(1m) and is tumbling(1h) now. The ways out: build it as before; another "
                "name= for an operator, whose state then begins empty; another application id "
                "than 'windows'; or throw the state away with `kafkalite-streams reset`"
            )
            await app.run(windows("1m"))

        asyncio.run(scenario())

    def test_an_operator_without_state_comes_and_the_state_stays(self, address: str) -> None:
        async def scenario() -> None:
            app = Application(address, "harmless")
            await app.send("a")
            await app.run(lambda s: s.group_by_key().count())
            await app.send("a")
            progress = await app.run(lambda s: s.filter(len).group_by_key().count())
            assert progress.records == 1
            assert progress.records_restored >= 1
            changelogs = [t for t in await app.topics() if t.endswith("-changelog")]
            assert len(changelogs) == 1

        asyncio.run(scenario())

    def test_a_refused_topology_makes_no_topics(self, address: str) -> None:
        async def scenario() -> None:
            app = Application(address, "refused")
            await app.send("a")
            await app.run(counting("n"))
            before = await app.topics()
            with pytest.raises(TopologyError, match="store 'n' is gone and 'm' is alike"):
                await app.run(counting("m"))
            assert await app.topics() == before

        asyncio.run(scenario())

    def test_topics_that_no_operator_owns_are_named_and_a_store_that_comes_back_is_refused(
        self, address: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def scenario() -> None:
            app = Application(address, "back")
            await app.send("a")
            await app.run(counting("n"))
            with caplog.at_level(logging.WARNING):
                await app.run(lambda s: s.to("back-out"))
            assert "store 'n' is no longer kept" in caplog.text
            await app.send("a")
            caplog.clear()
            await app.run(lambda s: s.to("back-out"))
            assert "no operator owns the internal topics back-n-changelog" in caplog.text
            with pytest.raises(TopologyError, match="store 'n' is new, but 'back-n-changelog'"):
                await app.run(counting("n"))

        asyncio.run(scenario())

    def test_records_of_a_repartition_topic_are_not_stranded(self, address: str) -> None:
        async def scenario() -> None:
            app = Application(address, "strand")
            await app.send("a", "b")

            def grouped(s: Stream) -> object:
                return s.group_by(str.upper, name="g").count(name="n")

            await app.run(grouped)
            async with Producer(address) as producer:
                columns = Columns([b"x"] * 3, [b"x"] * 3, [0] * 3)
                await producer.send_columns("strand-g-repartition", columns)
            with pytest.raises(TopologyError, match="3 records of 'strand-g-repartition' wait"):
                await app.run(lambda s: s.to("strand-out"))
            await app.run(grouped)
            await app.run(lambda s: s.to("strand-out"))

        asyncio.run(scenario())

    def test_rows_of_partials_find_their_table_or_a_refusal(self, address: str) -> None:
        def sums(*names: str) -> Build:
            def build(stream: Stream) -> None:
                groups = stream.group_by(str.upper, name="g")
                for name in names:
                    groups.window(tumbling("1s")).count(name=name)

            return build

        async def scenario() -> None:
            app = Application(address, "rows")
            await app.send("a", "b")
            worker = app.worker(sums("n"))
            running = asyncio.create_task(worker.run())
            try:
                while not worker.progress.records:
                    await asyncio.sleep(0.05)
                with pytest.raises(TopologyError, match="folds records before 'g' in another way"):
                    await app.run(sums("n", "m"))
            finally:
                worker.stop()
                await running
            await app.run(sums("n"))
            async with Producer(address) as producer:
                await producer.send_columns(
                    "rows-g-repartition", Columns([b"A"], [b"a"], [0]), partition=0
                )
            with pytest.raises(TopologyError, match="1 records of 'rows-g-repartition' wait"):
                await app.run(sums("n", "m"))
            await app.run(sums("n"))
            await app.run(sums("n", "m"))

        asyncio.run(scenario())

    def test_of_two_topologies_that_start_at_once_one_is_refused(self, address: str) -> None:
        async def scenario() -> None:
            app = Application(address, "race")
            await app.send("a")

            def rows(serde: object) -> Build:
                return lambda s: s.to_table(name="t", value=serde)  # type: ignore[arg-type]

            done = await asyncio.gather(
                app.run(rows(string())), app.run(rows(json_serde())), return_exceptions=True
            )
            kinds = sorted(type(each).__name__ for each in done)
            assert kinds == ["Progress", "TopologyError"], done

        asyncio.run(scenario())

    def test_workers_of_other_inputs_must_stop_first(self, address: str) -> None:
        async def scenario() -> None:
            app = Application(address, "beside")
            await app.send("a")
            worker = app.worker(counting("n"))
            running = asyncio.create_task(worker.run())
            while not worker.progress.records:
                await asyncio.sleep(0.05)
            try:
                await app.run(lambda s: counting("n")(s.filter(len)))  # rolls in beside it
                with pytest.raises(TopologyError, match="1 workers run a topology that reads oth"):
                    await app.run(
                        lambda s: (
                            counting("n")(s),
                            s.group_by(str.upper, name="g").count(name="m"),
                        )
                    )
            finally:
                worker.stop()
                await running

        asyncio.run(scenario())
