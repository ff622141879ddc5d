"""`--watchdog`: a child process kills this broker once its event loop is silent.            [IO]

    the broker's loop ── a byte each tick ──> pipe ──> child: counts ticks without a byte
           ^─────────────── SIGKILL, through a pidfd ────────────┘ at TICKS of them

A broker that is paused, or hangs, breaks no connection: clients and followers wait for its answers
until their own time-outs. Its session in the coordination ends meanwhile, so others lead what it
led. Killing it resets the connections, and everybody moves on at once.

Owns   the child and the pipe to it.
Never  kills another process: the pidfd is made by the broker, of itself. Never kills a broker that
       starts or stops: signs of life begin once it serves, and the pipe ends with the stop.
Fails  with ConfigError where the system has no pidfds, or cannot kill its first process.
Source pidfd_send_signal(2), pid_namespaces(7).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kafkalite.errors import ConfigError

log: Final = logging.getLogger(__name__)

TICKS: Final = 20  # of a silence that ends with a kill
CHILD: Final = Path(__file__).with_name("watchdog_child.py")


def is_supported() -> bool:
    """Whether the system can signal a process by a descriptor that names no other."""
    if not (hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:  # an older kernel, or a filter of system calls
        return False
    return True


def check_supported(pid: int | None = None) -> None:
    """ConfigError where no watchdog can do its work, or none that kills the process `pid`."""
    if not is_supported():
        raise ConfigError("--watchdog needs pidfds, which Linux has since 5.3: leave it out here")
    if pid == 1:
        words = "the system kills no first process of a container: run it with --init"
        raise ConfigError(f"--watchdog: {words}, or leave the option out")


@contextmanager
def watched(silence_s: float) -> Iterator[None]:
    """Within it, the process is killed once its loop has been silent for so many seconds."""
    tick_s = silence_s / TICKS
    line = _line(f"killed: its event loop was silent for {silence_s:g} s (--watchdog)")
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        pidfd = os.pidfd_open(os.getpid())
        try:
            numbers = [str(pidfd), str(reading), f"{tick_s:.6f}", str(TICKS)]
            child = subprocess.Popen(
                [sys.executable, "-I", "-S", str(CHILD), *numbers, line],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(pidfd, reading),
            )  # fmt: skip
        finally:
            os.close(pidfd)
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)

    def beat() -> bool:
        try:
            os.write(writing, b".")
        except BlockingIOError:  # the child is stopped, and will find signs enough
            return True
        except BrokenPipeError:
            log.error("the watchdog's process %d ended: nobody watches the broker", child.pid)
            return False
        return True

    try:
        with pulse(tick_s, beat):
            yield
    finally:
        os.close(writing)
        child.kill()  # it may be stopped
        child.wait()


@contextmanager
def pulse(seconds: float, beat: Callable[[], bool]) -> Iterator[None]:
    """Within it, the loop calls `beat` now and again after each so many seconds, until that returns
    False."""
    loop = asyncio.get_running_loop()
    handle: asyncio.TimerHandle | None = None

    def again() -> None:
        nonlocal handle
        if beat():
            handle = loop.call_later(seconds, again)

    again()
    try:
        yield
    finally:
        if handle is not None:
            handle.cancel()


def _line(words: str) -> str:
    """What the child writes to stderr, in the form of the log. The time is left to the child."""
    record = logging.LogRecord(__name__, logging.CRITICAL, __file__, 0, words, None, None)
    record.created = record.msecs = 0.0
    handlers = logging.getLogger().handlers
    return f"{handlers[0].format(record) if handlers else words}\n"
