"""Commands within the process of the test, so that a command costs no process.

    run_inside(("kafkalite", "topics", "list"), stdin=b"", environ=os.environ)

While a command runs, the process's standard descriptors and streams, environment, arguments,
signal handlers, logging, hooks, limits and import path are its own. Afterwards the test's are back,
and the modules that the command imported from elsewhere than this project or Python's own folders
are forgotten: the next topology may be in a file of the same name.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import IO

import pytest
import typer.main
from warm import PROGRAMS

from kafkalite.cli import app

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STREAMS = ("stdin", "stdout", "stderr")
HOOKS = [(threading, "excepthook"), (sys, "unraisablehook"), (warnings, "showwarning")]
LASTING = [
    Path(place).resolve() for place in (sys.prefix, sys.base_prefix, Path(__file__).parents[2])
]


def feed(writing: int, data: bytes) -> None:
    """Writes all that a command reads from its stdin."""
    with open(writing, "wb") as pipe:
        try:
            pipe.write(data)
            pipe.flush()
        except BrokenPipeError:  # as with any command, it may have had enough
            pass


def run_inside(
    command: tuple[str, ...], stdin: bytes, environ: Mapping[str, str]
) -> tuple[int, bytes, bytes]:
    """Runs one command, a program and its arguments, to its end: its exit code, stdout and
    stderr."""
    reading, writing = os.pipe()
    feeding = threading.Thread(target=feed, args=(writing, stdin))
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, ExitStack() as kept:
        feeding.start()
        try:
            for lend in (_signals, _logging, _process, _imports, _built_once):
                kept.enter_context(lend())
            kept.enter_context(_environment(environ))
            kept.enter_context(_streams(reading, out.fileno(), err.fileno()))
            code = _run(command)
        finally:
            kept.close()
            os.close(reading)
            feeding.join()
        return code, _all(out), _all(err)


def _run(command: tuple[str, ...]) -> int:
    sys.argv = list(command)
    try:
        import_module(PROGRAMS[command[0]]).main()
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:  # as the interpreter ends a process
        traceback.print_exc()
        return 1
    return 0


def _all(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


# Most of the time of a small command goes into its flags, which are the same each time.
build = cache(app.build)
get_command = cache(typer.main.get_command)


@contextmanager
def _built_once() -> Iterator[None]:
    """A program's tree of commands is kept from one run to the next."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "build", build)
        patch.setattr(typer.main, "get_command", get_command)
        yield


@contextmanager
def _streams(*given: int) -> Iterator[None]:
    """Standard streams over these descriptors."""
    before = [getattr(sys, name) for name in STREAMS]
    saved = [os.dup(place) for place in range(len(given))]
    for place, file in enumerate(given):
        os.dup2(file, place)
    try:
        with (
            open(0, closefd=False) as sys.stdin,
            open(1, "w", closefd=False) as sys.stdout,
            open(2, "w", buffering=1, errors="backslashreplace", closefd=False) as sys.stderr,
        ):
            yield
    finally:
        for place, file in enumerate(saved):
            os.dup2(file, place)
            os.close(file)
        sys.stdin, sys.stdout, sys.stderr = before


@contextmanager
def _environment(environ: Mapping[str, str]) -> Iterator[None]:
    before, arguments = dict(os.environ), sys.argv
    _become(environ)
    try:
        yield
    finally:
        sys.argv = arguments
        _become(before)


def _become(environ: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()


@contextmanager
def _signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _logging() -> Iterator[None]:
    """No handlers, as in a process that has just begun: pytest has its own."""
    assert logging.lastResort is not None
    handlers, formatter = logging.root.handlers, logging.lastResort.formatter
    levels = {logger: logger.level for logger in _loggers()}
    logging.root.handlers = []
    try:
        yield
    finally:
        logging.root.handlers = handlers
        logging.lastResort.formatter = formatter
        for logger in _loggers():
            logger.setLevel(levels.get(logger, logging.NOTSET))


def _loggers() -> list[logging.Logger]:
    known = logging.root.manager.loggerDict.values()
    return [logging.root, *(logger for logger in known if isinstance(logger, logging.Logger))]


@contextmanager
def _process() -> Iterator[None]:
    """What a broker sets for its whole process before it finds that it cannot start."""
    hooks = [(owner, name, getattr(owner, name)) for owner, name in HOOKS]
    interval, files = sys.getswitchinterval(), resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        for owner, name, hook in hooks:
            setattr(owner, name, hook)
        sys.setswitchinterval(interval)
        resource.setrlimit(resource.RLIMIT_NOFILE, files)


@contextmanager
def _imports() -> Iterator[None]:
    path, known, main = list(sys.path), set(sys.modules), sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")  # whose package would name the program
    try:
        yield
    finally:
        sys.path[:] = path
        sys.modules["__main__"] = main
        for name in set(sys.modules) - known:
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and not any(map(Path(file).resolve().is_relative_to, LASTING)):
                del sys.modules[name]
