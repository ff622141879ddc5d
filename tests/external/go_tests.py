"""Go modules with tests: their source out of the module proxy, their results out of -json."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from suite import Outcome, Result, Run, Suite, Target, call, program_path, record

SECONDS_MAX = 900
OUTCOMES = {"pass": Outcome.PASSED, "fail": Outcome.FAILED, "skip": Outcome.SKIPPED}


def fetch_module(folder: Path, module: str, version: str) -> None:
    """A copy of the module's source that can be written to, as Go's own cache cannot."""
    go = program_path("go")
    assert go is not None
    told = json.loads(call([go, "mod", "download", "-json", f"{module}@{version}"], cwd=folder))
    source = folder / "source"
    shutil.copytree(told["Dir"], source)
    for path in [source, *source.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def go_suite(
    name: str,
    module: str,
    version: str,
    package: str,
    *,
    environment: Callable[[Target], Mapping[str, str]],
    passing_min: int,
    excluded: Mapping[str, str] | None = None,
    programs: tuple[str, ...] = ("go",),
    prepare: Callable[[Path], None] = lambda source: None,
    brokers_min: int = 1,
) -> Suite:
    """The tests of one package of a module. `environment` tells them of the broker, `prepare`
    changes the module's source."""

    def fetch(folder: Path) -> None:
        fetch_module(folder, module, version)
        prepare(folder / "source")

    def run(run: Run) -> Iterator[Result]:
        return run_tests(run, package, environment(run.target))

    return Suite(
        name=name,
        version=version,
        programs=programs,
        fetch=fetch,
        run=run,
        passing_min=passing_min,
        excluded=excluded or {},
        brokers_min=brokers_min,
    )


def run_tests(
    run: Run,
    package: str,
    environment: Mapping[str, str],
    more: tuple[str, ...] = (),
    source: Path | None = None,
) -> Iterator[Result]:
    """The results of one package's tests, subtests by their paths. A test that did not end failed.

    Excluded names are given to -skip, which takes a regular expression for each level of a path.
    """
    go = program_path("go")
    assert go is not None
    command = [go, "test", "-json", "-count=1", f"-timeout={SECONDS_MAX}s", *more]
    if run.excluded:
        command.append(f"-skip={'|'.join(map(exactly, run.excluded))}")
    folder = source or run.source / "source"
    record([*command, package], run, folder, environment, SECONDS_MAX + 300)
    outcomes: dict[str, Outcome] = {}
    for line in run.log.read_text(errors="replace").splitlines():
        if not line.startswith("{"):
            continue
        event = json.loads(line)
        name, action = event.get("Test"), event.get("Action")
        if name and action == "run":
            outcomes[name] = Outcome.FAILED
        elif name and action in OUTCOMES:
            outcomes[name] = OUTCOMES[action]
    yield from (Result(name, outcome) for name, outcome in outcomes.items())


def exactly(name: str) -> str:
    return "/".join(f"^{re.escape(level)}$" for level in name.split("/"))
