"""What a type checker says of users' programs: right ones pass, wrong ones fail where it is marked.

`typed_*.py` and the guide are programs without an error under `mypy --strict`; they run, too. A
line of `wrong_*.py` with a mistake is marked with a part of mypy's message:

    ints.to("texts", value=string())  # E: expected "Serializer[int]"
"""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

HERE = Path(__file__).parent
GUIDE = HERE.parents[1] / "docs" / "guide" / "typing.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
MISTAKE = re.compile(r"^(orders\..*?)  +(\S.*)$", re.MULTILINE)  # in the guide, with its message
RIGHT = sorted(HERE.glob("typed_*.py"))
WRONG = sorted(HERE.glob("wrong_*.py"))
ERROR = re.compile(r"^(.+?):(\d+): error: (.*)$")
MARK = re.compile(r"# E: (.*)$")
Errors = dict[str, list[str]]  # by file and line


def found(files: list[Path], cache: Path) -> Errors:
    """The errors of `mypy --strict`, from one run without a configuration.

    The run has a process of its own: mypy raises Python's limit of recursion and the collector's
    threshold, and other tests look at both.
    """
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version=3.11", "--config-file="]
    command += ["--no-pretty", "--follow-imports=silent", f"--cache-dir={cache}"]
    done = subprocess.run([*command, *map(str, files)], capture_output=True, text=True)
    assert not done.stderr, done.stderr
    errors: Errors = defaultdict(list)
    for match in filter(None, map(ERROR.match, done.stdout.splitlines())):
        errors[f"{Path(match[1]).name}:{match[2]}"].append(match[3])
    return errors


def marked(files: list[Path]) -> dict[str, str]:
    return {
        f"{file.name}:{number}": match[1]
        for file in files
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if (match := MARK.search(line))
    }


@pytest.mark.slow
def test_mypy_finds_the_mistakes_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MYPYPATH", str(HERE.parents[1]))
    guide = tmp_path / "guide.py"
    page = GUIDE.read_text()
    guide.write_text("\n".join(BLOCK.findall(page)))
    mistakes = tmp_path / "mistakes.py"
    wrong = [f"{code}  # E: {message}" for code, message in MISTAKE.findall(page)]
    assert len(wrong) == 3
    mistakes.write_text("\n".join([guide.read_text(), *wrong, ""]))
    wrong_files = [*WRONG, mistakes]
    errors, marks = found([*RIGHT, guide, *wrong_files], tmp_path), marked(wrong_files)
    assert not {place: told for place, told in errors.items() if place not in marks}
    assert not marks.keys() - errors.keys(), "no error where one is expected"
    other = {at: told for at, told in errors.items() if not any(marks[at] in each for each in told)}
    assert not other, "other errors than the marked ones"


@pytest.mark.parametrize("program", RIGHT, ids=lambda path: path.stem)
def test_what_is_typed_runs(program: Path) -> None:
    runpy.run_path(str(program))
