"""What users import: it is there, light, documented by examples that run, and typed."""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from kafkalite import clients
from kafkalite.clients import sync
from kafkalite.clients.producer.transactional import TransactionalSettings
from kafkalite.clients.sync import Producer
from kafkalite.clients.sync.twin import Twin

PAIRS = [(getattr(clients, name), getattr(sync, name)) for name in sync.__all__]
EXAMPLES = [each for pair in PAIRS for each in pair]
OTHERWISE = {"send", "transaction", "subscribe", "__iter__"}  # written by hand: results differ


def public(kind: type) -> set[str]:
    """What a class has that `Lifetime` has not."""
    return {name for name in dir(kind) if not name.startswith("_")}


def parameters(function: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(function, eval_str=False).parameters.values())


def test_every_public_name_is_where_it_is_said_to_be() -> None:
    assert sorted(clients.HOMES) == clients.__all__
    assert all(getattr(clients, name).__name__ == name for name in clients.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Consumers'"):
        clients.Consumers  # type: ignore[attr-defined]  # noqa: B018


def test_the_names_cost_nothing_until_they_are_used() -> None:
    script = (
        "import sys, kafkalite.clients\n"
        "print([m for m in sys.modules if m.startswith('kafkalite.') and m.count('.') > 1])\n"
        "from kafkalite.clients import Producer, Consumer, Admin, TransactionalProducer\n"
        "import kafkalite.clients.sync\n"
        "heavy = {'typer', 'rich', 'starlette', 'prometheus_client', 'httpx', 'fastavro'}\n"
        "print(sorted(heavy & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "[]\n[]\n", done


@pytest.mark.parametrize(("first", "twin"), PAIRS, ids=sync.__all__)
def test_a_twin_has_all_that_the_asynchronous_class_has(first: type, twin: type[Twin[Any]]) -> None:
    assert public(first) == public(twin) - {"read", "let_go"}
    assert inspect.signature(first) == inspect.signature(twin)
    assert hasattr(first, "__aiter__") == hasattr(twin, "__iter__")


@pytest.mark.parametrize(("first", "twin"), PAIRS, ids=sync.__all__)
def test_a_twin_s_methods_take_the_same_and_return_what_is_awaited(
    first: type, twin: type[Twin[Any]]
) -> None:
    for name in public(first):
        one, other = inspect.getattr_static(first, name), inspect.getattr_static(twin, name)
        assert isinstance(one, property) == isinstance(other, property), name
        if isinstance(one, property):
            one, other = one.fget, other.fget
        assert parameters(one) == parameters(other), name
        assert not inspect.iscoroutinefunction(inspect.unwrap(other, stop=lambda f: True)), name
        if name not in OTHERWISE:
            told = inspect.signature(one).return_annotation
            assert inspect.signature(other).return_annotation == told, name


def test_a_transactional_producer_takes_what_any_does_but_what_transactions_decide() -> None:
    settings = inspect.signature(clients.Producer).parameters.keys() - {"client"}
    decided = {"acks", "enable_idempotence"}
    assert get_type_hints(TransactionalSettings).keys() == settings - decided
    hints = get_type_hints(clients.Producer.__init__)
    assert all(hints[name] == hint for name, hint in get_type_hints(TransactionalSettings).items())


def test_a_type_checker_sees_all_of_it() -> None:
    here = Path(__file__).parent
    command = [sys.executable, "-m", "mypy", "--strict", str(here / "typed_clients.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=here.parent.parent)
    assert done.stdout == "Success: no issues found in 1 source file\n", done


def example_of(kind: type) -> str:
    """The indented part of a docstring."""
    lines = inspect.cleandoc(kind.__doc__ or "").splitlines()
    return textwrap.dedent("\n".join(line for line in lines if line.startswith("    ") or not line))


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_the_example_in_a_class_s_docstring_runs(
    kind: type, bootstrap: str, topic: str, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    example = example_of(kind)
    assert "import" in example
    for said, meant in {
        "127.0.0.1:9092": bootstrap, "orders": topic, "billing": group, "invoices": f"{topic}-2"
    }.items():  # fmt: skip
        example = example.replace(said, meant)
    if kind.__name__ == "Consumer":
        with Producer(bootstrap) as producer:
            producer.send(topic, b"shipped", key=b"7")
    exec(compile(example, f"the example of {kind.__name__}", "exec"), {"__name__": "__main__"})
    shown = capsys.readouterr().out
    expected = {"Admin": topic, "Producer": "0", "Consumer": "b'7' b'shipped'"}
    assert expected.get(kind.__name__, "") in shown
