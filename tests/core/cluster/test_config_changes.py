"""Changes of settings: what they come to, and what is refused in which words."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.cluster import image as images
from kafkalite.core.cluster.config_changes import (
    BROKER,
    TOPIC,
    ChangeConfigs,
    ConfigChange,
    in_force,
    refusal,
    resources_named,
)
from kafkalite.core.cluster.controller import Controller
from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.protocol.configs import ConfigOperation
from kafkalite.core.protocol.topics import CreatableTopic, CreateTopicsRequest
from kafkalite.core.types import DEFAULT_LISTENER, RequestContext
from kafkalite.errors import ApiError, ErrorCode

SET, DELETE, APPEND, SUBTRACT = ConfigOperation
CONTEXT = RequestContext(1)


def controller(**static: str) -> Controller:
    config = BrokerConfig.parse({name.replace("_", "."): v for name, v in static.items()})
    machine = Controller(config, Random(7), lambda topic: ())
    machine.replay([images.broker_record(1, {DEFAULT_LISTENER: ("h", 9092)})])
    run(machine, CreateTopicsRequest((CreatableTopic("t", 1, 1, (), ()),)))
    return machine


def run(machine: Controller, request: Any) -> Any:
    outcome = machine.handle(request, CONTEXT)
    machine.replay(outcome.records)
    return outcome.replies[0].response


def change(kind: int, name: str, *operations: tuple[str, int, str | None]) -> ConfigChange:
    return ConfigChange(kind, name, operations)


def refusals(changes: list[ConfigChange]) -> list[Any]:
    named = resources_named(changes)
    return [refusal(change, named, 1) for change in changes]


def told(result: ApiError | None) -> tuple[str, str]:
    return ("NONE", "") if result is None else (result.error_code.name, result.words)


def topic_configs(machine: Controller) -> Mapping[str, str]:
    return machine.image.topics["t"].configs


POLICY = "cleanup.policy"
STORY = [  # after each step cleanup.policy is
    ((POLICY, APPEND, "compact"), "delete,compact"),  # what the broker says, and one more
    ((POLICY, APPEND, "compact"), "delete,compact"),
    ((POLICY, SUBTRACT, "delete"), "compact"),
    ((POLICY, SUBTRACT, "nothing,of,this"), "compact"),
    ((POLICY, SUBTRACT, "compact"), ""),
    ((POLICY, APPEND, ""), ""),
    ((POLICY, SET, " compact , delete "), " compact , delete "),
    ((POLICY, SUBTRACT, "delete"), "compact"),
    ((POLICY, DELETE, None), None),
    ((POLICY, SUBTRACT, "delete"), ""),
]


def test_lists_grow_and_shrink() -> None:
    machine = controller()
    for operation, after in STORY:
        (result,) = run(machine, ChangeConfigs((change(TOPIC, "t", operation),)))
        assert result is None
        assert topic_configs(machine).get(POLICY) == after, operation


REFUSED_HERE: list[tuple[list[ConfigChange], str]] = [
    ([change(TOPIC, "t", ("a", 0, "1"), ("a", 1, None))], "Error due to duplicate config keys"),
    ([change(TOPIC, "t", ("a", 0, None))], "Null value not supported for : a"),
    ([change(TOPIC, "t", ("a", 2, None))], "Null value not supported for : a"),
    ([change(TOPIC, "t", ("a", 4, "1"))], "Unknown operation 4 on a"),
    ([change(TOPIC, "t")] * 2, "Each resource must appear at most once."),
    ([change(99, "t")], "Unknown resource type 99"),
    ([change(BROKER, "2")], "Unexpected broker id, expected 1, but received 2"),
    ([change(BROKER, "01")], "Unexpected broker id, expected 1, but received 01"),
    ([change(BROKER, "x")], "Node id must be an integer, but it is: x"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED_HERE, ids=lambda v: str(v)[:60])
def test_what_the_broker_refuses_itself(changes: list[ConfigChange], words: str) -> None:
    expected = ("INVALID_REQUEST", words)
    assert [told(result) for result in refusals(changes)] == [expected] * len(changes)


CREATION_RATE = "max.connection.creation.rate"
OF_LISTENER = "listener.name.plaintext.max.connections"
REFUSED: list[tuple[ConfigChange, str, str]] = [
    (change(TOPIC, "no", ("a", 0, "1")), "UNKNOWN_TOPIC_OR_PARTITION", "'no' does not exist."),
    (change(TOPIC, "", ("a", 0, "1")), "INVALID_REQUEST", "Default topic resources are not allow"),
    (change(TOPIC, "n!", ("a", 0, "1")), "INVALID_TOPIC_EXCEPTION", "Topic name is invalid: 'n!'"),
    (change(TOPIC, "t", ("a", 0, "1")), "INVALID_CONFIG", "Unknown topic config name: a"),
    (change(TOPIC, "t", ("segment.ms", 0, "x")), "INVALID_CONFIG", "Invalid value x for conf"),
    (change(TOPIC, "t", ("segment.ms", 2, "1")), "INVALID_CONFIG", "Can't APPEND to key segment."),
    (change(TOPIC, "t", ("segment.ms", 3, "1")), "INVALID_CONFIG", "Can't SUBTRACT to key segmen"),
    (change(TOPIC, "t", (POLICY, 2, "shred")), "INVALID_CONFIG", "Invalid value shred for config"),
    (change(BROKER, "1", ("log.dirs", 0, "/x")), "INVALID_REQUEST", "dynamically: [log.dirs]"),
    (change(BROKER, "", ("node.id", 0, "2")), "INVALID_REQUEST", "dynamically: [node.id]"),
    (change(BROKER, "", ("log.roll.ms", 0, "x")), "INVALID_REQUEST", "Invalid value x for confi"),
    (change(BROKER, "1", ("config.providers", 0, "f")), "INVALID_REQUEST", "asks no provider"),
    (change(BROKER, "", (CREATION_RATE, 0, "5")), "INVALID_REQUEST", "how fast connections come"),
    (change(BROKER, "1", (OF_LISTENER, 0, "5")), "INVALID_REQUEST", "max.connections limits"),
    (change(BROKER, "1", ("my.own", 0, "x" * 1_000_000)), "INVALID_REQUEST", "bytes, at most"),
    (change(BROKER, "1", ("my.own", 2, "x")), "INVALID_REQUEST", "Can't APPEND to key my.own bec"),
]


@pytest.mark.parametrize(("wanted", "code", "words"), REFUSED, ids=lambda v: str(v)[:60])
def test_what_makes_no_sense_is_refused_alone(wanted: ConfigChange, code: str, words: str) -> None:
    machine = controller()
    good = change(BROKER, "", ("message.max.bytes", SET, "77"))
    if wanted.resource_name == "":
        good = change(TOPIC, "t", ("max.message.bytes", SET, "77"))
    refusal, done = run(machine, ChangeConfigs((wanted, good)))
    assert done is None
    assert told(refusal)[0] == code
    assert words in told(refusal)[1]
    changed = topic_configs(machine) or machine.image.broker_configs[""]
    assert "77" in changed.values()


def test_a_change_is_whole_or_not_at_all() -> None:
    machine = controller()
    wanted = change(TOPIC, "t", ("retention.ms", SET, "5"), ("segment.ms", SET, "x"))
    (refusal,) = run(machine, ChangeConfigs((wanted,)))
    assert told(refusal)[0] == "INVALID_CONFIG"
    assert topic_configs(machine) == {}


def test_validate_only_and_no_change_write_nothing() -> None:
    machine = controller()
    wanted = change(TOPIC, "t", ("retention.ms", SET, "5"))
    outcome = machine.handle(ChangeConfigs((wanted,), validate_only=True), CONTEXT)
    assert (outcome.records, outcome.replies[0].response) == ((), [None])
    run(machine, ChangeConfigs((wanted,)))
    assert topic_configs(machine) == {"retention.ms": "5"}
    assert machine.handle(ChangeConfigs((wanted,)), CONTEXT).records == ()


def test_replacing_returns_what_is_not_named_to_its_default() -> None:
    machine = controller()
    run(machine, ChangeConfigs((change(TOPIC, "t", ("retention.ms", SET, "5")),)))
    replacing = ConfigChange(TOPIC, "t", (("segment.ms", SET, "7"),), replaces=True)
    run(machine, ChangeConfigs((replacing,)))
    assert topic_configs(machine) == {"segment.ms": "7"}


def test_a_brokers_own_settings_win_over_those_of_every_broker() -> None:
    machine = controller(message_max_bytes="1")
    of_all = change(BROKER, "", ("message.max.bytes", SET, "2"))
    own = change(BROKER, "1", ("message.max.bytes", SET, "3"))
    run(machine, ChangeConfigs((of_all, own)))
    for node_id, expected in ((1, 3), (2, 2)):
        config, complaint = in_force(machine.config, machine.image, node_id)
        assert (config["message.max.bytes"], complaint) == (expected, None)
    run(machine, ChangeConfigs((change(BROKER, "1", ("message.max.bytes", DELETE, None)),)))
    assert in_force(machine.config, machine.image, 1)[0]["message.max.bytes"] == 2
    again = images.replay(
        images.ClusterImage(),
        [images.broker_configs_record(n, c) for n, c in machine.image.broker_configs.items()],
    )
    assert again.broker_configs == machine.image.broker_configs


@pytest.mark.parametrize("layer", ["", "1"])
def test_threads_are_halved_or_doubled_at_the_most(layer: str) -> None:
    machine = controller(log_cleaner_threads="5", num_io_threads="8")
    for name, count, words in (
        ("log.cleaner.threads", "0", "should be at least 1"),
        ("log.cleaner.threads", "1", "=1, value should be at least half the current value 5"),
        ("log.cleaner.threads", "2", ""),
        ("log.cleaner.threads", "10", ""),
        ("log.cleaner.threads", "11", "=11, value should not be greater than double"),
        ("num.io.threads", "3", "num.io.threads=3, value should be at least half"),
        ("log.cleaner.dedupe.buffer.size", "5000000", "at least 1MB per cleaner thread"),
    ):
        edit = ChangeConfigs((change(BROKER, layer, (name, SET, count)),), validate_only=True)
        (result,) = run(machine, edit)
        assert told(result)[0] == ("INVALID_REQUEST" if words else "NONE")
        assert words in told(result)[1]
    machine.config = machine.config.with_dynamic(dynamic={"log.cleaner.threads": "11"})
    machine.replay([images.broker_configs_record("1", {"log.cleaner.threads": "11"})])
    edit = ChangeConfigs((change(BROKER, "1", ("log.cleaner.threads", DELETE, None)),))
    assert run(machine, edit) == [None], "5 is half of 11"
    machine.replay([images.broker_configs_record("1", {"log.cleaner.threads": "12"})])
    machine.config = machine.config.with_dynamic(dynamic={"log.cleaner.threads": "12"})
    (result,) = run(machine, edit)
    assert "log.cleaner.threads=5, value should be at least half" in told(result)[1]


def test_settings_that_no_longer_fit_are_left_out_with_a_reason() -> None:
    machine = controller()
    name = "log.cleaner.max.compaction.lag.ms"
    run(machine, ChangeConfigs((change(BROKER, "", (name, SET, "5")),)))
    static = BrokerConfig.parse({"log.cleaner.min.compaction.lag.ms": "10"})
    config, complaint = in_force(static, machine.image, 1)
    assert config is static
    assert complaint is not None
    assert "log.cleaner.min.compaction.lag.ms (10) > " + name in complaint


def test_a_refused_write_is_told_for_each_change() -> None:
    machine = controller()
    error = ApiError(ErrorCode.NOT_CONTROLLER, "another")
    assert machine.refuse(ChangeConfigs((change(TOPIC, "t"),) * 3), error) == [error] * 3


WORDS = st.lists(st.sampled_from(["compact", "delete"]), max_size=3)
Edit = tuple[ConfigOperation, list[str]]
EDITS = st.lists(st.tuples(st.sampled_from([SET, DELETE, APPEND, SUBTRACT]), WORDS), max_size=8)


@given(EDITS)
def test_edits_of_a_list_are_those_of_a_python_list(
    edits: list[Edit],
) -> None:
    machine = controller()
    model: list[str] | None = None
    for operation, words in edits:
        edit = change(TOPIC, "t", (POLICY, operation, ",".join(words)))
        assert run(machine, ChangeConfigs((edit,))) == [None]
        before = ["delete"] if model is None else model
        match operation:
            case ConfigOperation.SET:
                model = words
            case ConfigOperation.DELETE:
                model = None
            case ConfigOperation.APPEND:
                model = list(dict.fromkeys(before + words))
            case ConfigOperation.SUBTRACT:
                model = [word for word in before if word not in words]
        expected = None if model is None else ",".join(model)
        assert topic_configs(machine).get(POLICY) == expected
