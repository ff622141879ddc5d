"""`kafkalite cluster` as far as one broker shows it; `test_cli_cluster_real.py` has three."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafkalite import EmbeddedBroker
from kafkalite.cli import cluster_moves, cluster_start
from kafkalite.cli.cluster_start import DEATHS_MAX, PAUSE_SECONDS_MAX, SOON_SECONDS, Restarts
from kafkalite.clients.admin.client import ConfigResource, ResourceType
from kafkalite.errors import BrokerUnavailable, KafkaliteError

Run = Callable[..., Any]
Refused = Callable[..., str]


@pytest.fixture
def run(kafkalite: Run, broker: EmbeddedBroker) -> Run:
    """`run("cluster", "status")`: a command, with our broker wherever the other tests run."""

    def run(*words: str, **more: Any) -> Any:
        return kafkalite(*words, KAFKALITE_BOOTSTRAP_SERVERS=broker.bootstrap_servers, **more)

    return run


def test_the_state_of_one_broker(run: Run, topic: str) -> None:
    run("topics", "create", topic, "--partitions", "3")
    told = run("cluster", "status", "--json").json
    (broker,) = told["brokers"]
    assert (broker["id"], broker["is_up"], broker["rack"]) == (1, True, None)
    assert broker["out_of_sync"] == 0
    assert broker["leaders"] == broker["replicas"] == told["partitions"] >= 3
    assert (told["offline"], told["under_replicated"], told["below_min_isr"]) == (0, 0, 0)
    lines = run("cluster", "status", "--wait").lines
    assert lines[0] == f"cluster {told['cluster_id']}, controller 1, 1 broker up of 1"
    assert lines[2].split()[:3] == ["BROKER", "ADDRESS", "RACK"]
    assert topic not in run("cluster", "status").out.decode()


def test_plans_of_one_broker(run: Run, topic: str) -> None:
    run("topics", "create", topic, "--partitions", "2")
    plan = run("cluster", "move", topic, "--to", "1", "--wait", "--json").json
    assert plan["executed"]
    assert (plan["partitions"], plan["replicas_to_copy"], plan["elections"]) == ([], 0, [])
    assert run("cluster", "rebalance", "--dry-run").lines == ["nothing to move"]
    assert run("cluster", "rebalance", "--wait").lines == ["nothing to move"]
    assert run("cluster", "move", topic, "--cancel").lines == ["0 moves cancelled"]
    refused = [
        (("drain", "1"), "has 1 replicas, there are only 0 brokers for them: none\n"),
        (("drain", "7"), "kafkalite: there is no broker 7: the cluster has 1\n"),
        (("move", topic, "--to", "1,2"), "kafkalite: there is no broker 2 now\n"),
    ]
    for command, words in refused:
        assert run("cluster", *command, code=1).err.endswith(words)
    assert "does not exist" in run("cluster", "move", f"{topic}-x", "--to", "1", code=1).err


def test_a_child_that_cannot_be_started_for_now_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where the system has no process left."""
    monkeypatch.setattr(cluster_start, "LOOK_SECONDS", 0)
    monkeypatch.setattr(cluster_start, "FIRST_PAUSE_SECONDS", 0)
    tries: list[int] = []
    stop = cluster_start._Stop()

    def start() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise BlockingIOError("no process left")
        stop.want("enough")

    keeper = cluster_start._Keeper(
        "broker 1",
        stop,
        is_running=lambda: False,
        why=lambda: "died",
        start=start,
        give_up=lambda name: stop.want(f"{name} is given up"),
    )
    keeper.thread.join(10)
    assert (len(tries), stop.reason) == (2, "enough")
    assert "broker 1: no process left" in capsys.readouterr().err


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_throttle_is_taken_off_wherever_a_broker_answers(
    is_interrupted: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (ConfigResource(ResourceType.BROKER, name) for name in ("1", "2"))
    set_now: dict[ConfigResource, Any] = {}

    class Brokers:
        async def alter_configs(self, resource: ConfigResource, settings: Any) -> None:
            if resource == first and first in set_now:
                raise BrokerUnavailable("nobody listens")
            set_now[resource] = settings["rate"]

    async def settings_now(*_: object) -> Any:
        return {first: {"rate": None}, second: {"rate": None}}

    wanted = {first: {"rate": "10"}, second: {"rate": "10"}}
    monkeypatch.setattr(cluster_moves, "_throttles", lambda *_: wanted)
    monkeypatch.setattr(cluster_moves, "_settings_now", settings_now)
    admin, plan, words = (
        Brokers(),
        object(),
        r"the throttle of broker 1 is still set \(rate\): nobo",
    )

    async def move() -> None:
        async with cluster_moves._throttled(admin, plan, 10):  # type: ignore[arg-type]
            if is_interrupted:
                raise KeyboardInterrupt

    if is_interrupted:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(move())
        assert re.search(words, capsys.readouterr().err)
    else:
        with pytest.raises(KafkaliteError, match=words):
            asyncio.run(move())
    assert set_now == {first: "10", second: None}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["move", "orders"], "name the brokers, such as --to 1,2,3"),
        (["move", "orders", "--to", "1;2"], "'1;2' is not a list like 1,2,3"),
        (["move", "orders", "--to", "1,1"], "'1,1' names a broker twice"),
        (["rebalance", "--throttle", "5M"], "needs --wait, which takes the throttle off"),
        (["rebalance", "--throttle", "0", "--wait"], "0 bytes a second never end"),
        (["rebalance", "--throttle", "fast", "--wait"], "'fast' is not a size"),
        (["drain"], "Missing argument 'BROKER"),
    ],
)
def test_wrong_flags(kafkalite: Run, command: list[str], words: str) -> None:
    assert words in kafkalite("cluster", *command, code=2).err


def test_what_no_cluster_can_start_with(kafkalite: Run, refused: Refused, tmp_path: Path) -> None:
    where = ("cluster", "start", "--data-dir", str(tmp_path / "cluster"))
    assert "greater than or equal to 1" in kafkalite(*where, "--brokers", "0", code=2).err
    assert refused(*where, "--listen", "nowhere") == (
        "'nowhere' is not HOST:PORT with 3 ports from there on"
    )
    assert "4 racks for 3 brokers" in refused(*where, "--racks", "a,b,c,d")
    assert "broker.id cannot be set here" in refused(*where, "--override", "broker.id=4")
    assert not (tmp_path / "cluster").exists()


def test_a_child_that_dies_again_and_again_waits_longer_and_is_given_up() -> None:
    restarts = Restarts()
    pauses = [restarts.died(1.0) for _ in range(DEATHS_MAX)]
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert pauses[-1] == PAUSE_SECONDS_MAX
    assert restarts.died(1.0) is None
    again = Restarts(deaths=5)
    assert again.died(SOON_SECONDS) == 0.5
