"""Writes `docs/commands.md` from the help texts of the commands.  [IO]

    python -m kafkalite.cli.reference > docs/commands.md

Owns   how the page looks. A test holds the page to what this writes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any, Final

import typer

from kafkalite.cli import spark, streams
from kafkalite.cli.app import HELP, build
from kafkalite.cli.json_shapes import SHAPES

EXAMPLE: Final = "  $ "
COMPLETION_FLAGS: Final = frozenset({"install_completion", "show_completion"})
INTRODUCTION: Final = f"""# Commands

{HELP} Written by `python -m kafkalite.cli.reference` out of the text of `--help`.

- **Where**: `--bootstrap-servers HOST:PORT[,…]` or `-b`, else the variable
  `KAFKALITE_BOOTSTRAP_SERVERS`, else `127.0.0.1:9092`.
- **Output**: tables on a terminal, aligned text in a pipe, with `--json` one JSON document;
  `consume` and `log dump` print a document per line. Progress, summaries and errors go to stderr.
  Fields of JSON keep their names and meaning, new ones may be added; times are epoch ms or ISO
  8601, sizes are in bytes.
- **Exit codes**: 0 done; 1 refused or failed, with one line on stderr; 2 wrong flags; 130 Ctrl-C
  (SIGTERM: 143), but 0 for commands that run until they are stopped (`server start`,
  `cluster start`, `registry start`, `kafkalite-streams run`). A closed pipe (`| head`) is 0.
- **A place in a log** (`--from`, `--to`, `--before`): `beginning`, `end`, an offset, `-N` for the
  last N of each partition, `-15m` (ms, s, m, h, d, w ago), an ISO time such as `2024-05-01T12:00Z`
  (without a zone: local time), `@1714564800000` (epoch ms).
- **Completion**: `source <(kafkalite completion bash)`; for zsh the same after `compinit`; for fish
  `kafkalite completion fish | source`.
"""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for name, cli in programs().items():
        for path, command in _commands(typer.main.get_command(cli), name):
            parts.append(_section(path, command))
    return "\n".join(parts)


def programs() -> dict[str, typer.Typer]:
    """Every program that is installed, by its name."""
    return {"kafkalite": build(), "kafkalite-streams": streams.cli, "kafkalite-spark": spark.cli}


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every command below, by its full name; groups are gone through."""
    for part in command.list_commands(None):
        below = command.commands[part]
        if hasattr(below, "commands"):
            yield from _commands(below, f"{name} {part}")
        else:
            yield f"{name} {part}", below


def _section(name: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    usage = " ".join([name, *map(_placeholder, arguments), "[OPTIONS]" if options else ""]).rstrip()
    lines = [f"## {name}", "", _text(command.help), "", f"    {usage}", ""]
    lines += [f"- `{_placeholder(a)}`: {_text(a.help)}" for a in arguments]
    lines += [_option(option) for option in options if option.name not in COMPLETION_FLAGS]
    if name in SHAPES:
        lines += ["", f"JSON: `{SHAPES[name]}`"]
    shown = [line for line in (command.epilog or "").split("\n") if line.startswith(EXAMPLE)]
    if shown:
        examples = "\n".join(line.removeprefix(EXAMPLE) for line in shown)
        lines += ["", "```", examples, "```"]
    return "\n".join(lines) + "\n"


def _placeholder(argument: Any) -> str:
    plain = (argument.metavar or argument.name.upper()).strip("[]")
    many = f"{plain}…" if argument.nargs != 1 else plain
    return many if argument.required else f"[{many}]"


def _option(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    return f"- {names}: {_text(option.help)}{_default(option)}"


def _default(option: Any) -> str:
    if isinstance(option.show_default, str):
        return f" Default: {option.show_default}."
    value = getattr(option.default, "value", option.default)
    if value is None or value == "" or isinstance(value, bool | list | tuple) or callable(value):
        return ""
    return f" Default: {value}."


def _text(text: str | None) -> str:
    return re.sub(r"\s*\n\s*", " ", (text or "").strip())


if __name__ == "__main__":
    sys.stdout.write(page())
