"""Help, completion, the reference: what commands say of themselves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from command_tree import TREE, commands

from kafkalite.cli.app import COMMANDS, GROUPS, build
from kafkalite.cli.json_shapes import SHAPES
from kafkalite.cli.reference import page

Run = Callable[..., Any]
ROOT = Path(__file__).parent.parent.parent


ALL = pytest.mark.parametrize("path", TREE, ids=" ".join)
COMPLETION = ("kafkalite", "completion")


@ALL
def test_every_command_teaches(path: tuple[str, ...]) -> None:
    command = TREE[path]
    assert command.help
    widest = max(len(other[-1]) for other in TREE if other[:-1] == path[:-1])
    room = 80 - 8 - widest  # beside the names, on a terminal of 80 columns
    assert not command.get_short_help_str(room).endswith("..."), "cut where commands are listed"
    for parameter in command.params:
        assert parameter.help, (path, parameter.name)
    if path != COMPLETION:
        assert "$ kafkalite" in command.epilog, path


@ALL
def test_every_command_speaks_json(path: tuple[str, ...]) -> None:
    flags = {flag for parameter in TREE[path].params for flag in parameter.opts}
    if path != COMPLETION:
        assert " ".join(path) in SHAPES
        assert "--json" in flags


@ALL
def test_every_example_is_one_that_the_command_takes(path: tuple[str, ...]) -> None:
    """Flags of the examples exist."""
    command = TREE[path]
    flags = {flag for p in command.params for flag in [*p.opts, *p.secondary_opts]} | {"--help"}
    own = f"{' '.join(path)} "
    for line in (command.epilog or "").split("\n"):
        for part in line.strip().removeprefix("$ ").split(" | "):
            if part.startswith(own):
                words = [w.partition("=")[0] for w in part.split() if w.startswith("--")]
                assert set(words) <= flags, part


def test_the_reference_is_up_to_date() -> None:
    written = (ROOT / "docs" / "commands.md").read_text()
    assert written == page(), "python -m kafkalite.cli.reference > docs/commands.md"
    for path in TREE:
        assert f"## {' '.join(path)}\n" in written


def test_the_tree_is_built_in_parts_as_it_is_as_a_whole() -> None:
    for name in [*GROUPS, *COMMANDS]:
        part = dict(commands(typer.main.get_command(build(name))))
        assert {path[1:] for path in TREE if path[:2] == ("kafkalite", name)} == set(part)


def test_help_is_shown(kafkalite: Run) -> None:
    text = kafkalite("--help").out.decode()
    for name in [*GROUPS, *COMMANDS]:
        assert name in text
    assert "--from" in kafkalite("consume", "--help").out.decode()
    assert kafkalite("--version").out.startswith(b"kafkalite ")


def test_names_and_examples_are_whole_on_a_narrow_terminal(kafkalite: Run) -> None:
    lines = kafkalite("topics", "create", "-h", COLUMNS="60").lines
    assert any("--bootstrap-servers" in line for line in lines)
    assert any("--replication-factor" in line for line in lines)
    example = "    $ kafkalite topics create prices --config cleanup.policy=compact --if-not-exists"
    assert example in lines


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["topics", "creat"], "Did you mean 'create'?"),
        (["topics", "create"], "Missing argument 'TOPIC' (see kafkalite topics create --help)"),
        (["topics", "create", "x", "--partitons", "3"], "--partitions"),
        (["topics", "create", "x", "--partitions", "many"], "'--partitions': "),
        (["consume", "x", "--from", "banana"], "'banana' is not a place"),
        (["consume", "x", "--value", "avrro"], "; did you mean 'avro'?"),
        (["groups", "reset-offsets", "x"], "either --to or --shift-by"),
    ],
)
def test_flags_that_make_no_sense_are_one_line(kafkalite: Run, words: list[str], told: str) -> None:
    ran = kafkalite(*words, code=2)
    assert ran.out == b""
    assert ran.err.startswith("kafkalite: ")
    assert ran.err.count("\n") == 1, ran.err
    assert told in ran.err


def test_help_imports_neither_clients_nor_codecs() -> None:
    """They would double its time."""
    script = (
        "import sys\n"
        "from kafkalite.cli.app import build\n"
        "build()\n"
        "heavy = {'fastavro', 'cramjam', 'rich', 'orjson', 'kafkalite.clients.cluster',"
        " 'kafkalite.core.protocol.compiler'}\n"
        "print(sorted(heavy & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "[]\n", done


@pytest.fixture
def completed(kafkalite: Run) -> Callable[..., list[str]]:
    """`completed("topics", "cr")`: what bash offers for the last word."""

    def ask(*words: str, **variables: str) -> list[str]:
        asked = {
            "_KAFKALITE_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(["kafkalite", *words]),
            "COMP_CWORD": str(len(words)),
        }
        return kafkalite(**asked, **variables).out.decode().split()

    return ask


def test_commands_flags_and_topics_are_completed(
    completed: Callable[..., list[str]], kafkalite: Run, topic: str
) -> None:
    assert completed("top") == ["topics"]
    assert completed("topics", "de") == ["describe", "delete"]
    assert "--until-end" in completed("consume", "--u")
    kafkalite("topics", "create", topic)
    assert completed("consume", topic[:-1]) == [topic]
    nobody = {"KAFKALITE_BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    assert completed("consume", topic[:-1], **nobody) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(kafkalite: Run, shell: str) -> None:
    script = kafkalite("completion", shell).out.decode()
    assert f"_KAFKALITE_COMPLETE=complete_{shell}" in script
    kafkalite("completion", "powerdos", code=2)
