"""Settings, asked for and changed."""

from __future__ import annotations

from typing import Any

from asking import Talk

from kafkalite.core.protocol.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


def describe(kind: int, name: str, *keys: str, **how: Any) -> DescribeConfigsRequest:
    return DescribeConfigsRequest((DescribeConfigsResource(kind, name, keys or None),), **how)


def change(
    kind: int, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False
) -> IncrementalAlterConfigsRequest:
    asked = tuple(IncrementalAlterableConfig(*each) for each in changes)
    resource = IncrementalAlterConfigsResource(kind, name, asked)
    return IncrementalAlterConfigsRequest((resource,), validate_only)


def asking_for_settings(talk: Talk) -> None:
    name = talk.topic("t", retention_ms="5000")
    for version in range(1, 5):
        request = describe(TOPIC, name, "retention.ms", "cleanup.policy")
        talk.ask(f"v{version}", request, version)
    for label, kind, which in (
        ("an unknown topic", TOPIC, talk.name("nowhere")),
        ("a bad name", TOPIC, "a b"),
        ("a thing of type 0", 0, "x"),
        ("a thing of type 77", 77, "x"),
        ("broker 9", BROKER, "9"),
        ("broker x", BROKER, "x"),
    ):
        talk.ask(label, describe(kind, which), 1)
    talk.ask("an unknown setting", describe(TOPIC, name, "no.such"), 1)


def changing_settings(talk: Talk) -> None:
    name = talk.topic("t", retention_ms="5000")

    def ask(label: str, *changes: tuple[str, int, str | None], **how: Any) -> None:
        talk.ask(label, change(TOPIC, name, *changes, **how), 1)

    ask("set", ("retention.ms", SET, "9000"))
    ask("validated", ("retention.ms", SET, "7"), validate_only=True)
    ask("a word for a number", ("retention.ms", SET, "x"))
    ask("an unknown setting", ("no.such", SET, "1"))
    ask("operation 9", ("retention.ms", 9, "1"))
    ask("append to a number", ("retention.ms", APPEND, "1"))
    ask("append", ("cleanup.policy", APPEND, "compact"))
    ask("subtract", ("cleanup.policy", SUBTRACT, "delete"))
    ask("append what is there", ("cleanup.policy", APPEND, "compact"))
    ask("a null value", ("retention.ms", SET, None))
    ask("one setting twice", ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
    settings = describe(TOPIC, name, "retention.ms", "cleanup.policy", "segment.ms")
    talk.ask("then", settings, 1)
    ask("delete", ("retention.ms", DELETE, None))
    ask("delete what is not set", ("segment.ms", DELETE, None))
    talk.ask("after deletion", settings, 1)
    nowhere = talk.name("nowhere")
    for label, kind, which in (("an unknown topic", TOPIC, nowhere), ("a thing of type 9", 9, "x")):
        talk.ask(f"set in {label}", change(kind, which, ("retention.ms", SET, "1")), 1)


def replacing_settings(talk: Talk) -> None:
    name = talk.topic("t", retention_ms="5000")

    def ask(label: str, *settings: tuple[str, str | None], version: int = 1) -> None:
        wanted = tuple(AlterableConfig(*each) for each in settings)
        resource = AlterConfigsResource(TOPIC, name, wanted)
        talk.ask(label, AlterConfigsRequest((resource,), False), version)

    for version in range(3):
        ask(f"v{version}", ("max.message.bytes", "5000"), version=version)
    settings = describe(TOPIC, name, "retention.ms", "max.message.bytes")

    def settled(value: str) -> None:
        def is_set(answer: Any) -> bool:
            return any(c.value == value for r in answer.results for c in r.configs)

        talk.until(lambda: talk.say(settings, 1), is_set)

    settled("5000")
    talk.ask("then", settings, 1)
    ask("a word for a number", ("max.message.bytes", "x"))
    ask("one setting twice", ("max.message.bytes", "1"), ("max.message.bytes", "2"))
    ask("a null value", ("max.message.bytes", None))
    ask("none")
    settled("1048588")
    talk.ask("in the end", settings, 1)


def changing_a_broker(talk: Talk) -> None:
    for which in ("1", ""):
        place = which or "every broker"
        talk.ask(f"set on {place}", change(BROKER, which, ("log.retention.ms", SET, "777777")), 1)
        settings = describe(BROKER, which, "log.retention.ms")

        def is_set(answer: Any) -> bool:
            return any(c.value == "777777" for r in answer.results for c in r.configs)

        talk.until(lambda settings=settings: talk.say(settings, 1), is_set)
        talk.ask(f"then on {place}", settings, 1)
        for key in ("port", "log.dirs", "no.such"):
            talk.ask(f"set {key} on {place}", change(BROKER, which, (key, SET, "1")), 1)
        talk.ask(f"unset on {place}", change(BROKER, which, ("log.retention.ms", DELETE, None)), 1)
    for which in ("9", "x"):
        talk.ask(f"set on broker {which}", change(BROKER, which, ("log.retention.ms", SET, "1")), 1)
