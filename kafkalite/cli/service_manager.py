"""What systemd hears of a service of Type=notify: it serves, it lives, it stops.              [IO]

    NOTIFY_SOCKET  a datagram socket, by its path or as an abstract name (@…)
    READY=1        clients can connect      WATCHDOG=1  at half of WATCHDOG_USEC
    STOPPING=1     the stop has begun       where WATCHDOG_PID is this process

Owns   one message a datagram. Without NOTIFY_SOCKET nobody is told anything.
Fails  with ConfigError for an address or a time that it cannot read. A manager that takes no
       message is logged: the service goes on.
Source sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Final

from kafkalite.cli.watchdog import pulse
from kafkalite.errors import ConfigError

log: Final = logging.getLogger(__name__)

SOCKET: Final = "NOTIFY_SOCKET"
WATCHDOG_US: Final = "WATCHDOG_USEC"
WATCHDOG_PID: Final = "WATCHDOG_PID"


@contextmanager
def told_to_service_manager(environment: Mapping[str, str]) -> Iterator[None]:
    """Within it the service serves."""
    at = environment.get(SOCKET)
    if not at:
        yield
        return
    if at[0] not in "/@":
        raise ConfigError(f"{SOCKET}={at}: neither a path nor an abstract name (@…)")
    seconds = _watchdog_seconds(environment)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection, ExitStack() as alive:
        connection.setblocking(False)

        def tell(state: str) -> bool:
            try:
                connection.sendto(state.encode(), at.replace("@", "\0", 1) if at[0] == "@" else at)
            except OSError as error:
                log.warning("%s to %s=%s: %s", state, SOCKET, at, error.strerror)
            return True

        tell("READY=1")
        if seconds is not None:
            alive.enter_context(pulse(seconds / 2, lambda: tell("WATCHDOG=1")))
        try:
            yield
        finally:
            alive.close()
            tell("STOPPING=1")


def _watchdog_seconds(environment: Mapping[str, str]) -> float | None:
    """How long the manager waits for a sign of life; None where it wants none from this process."""
    text = environment.get(WATCHDOG_US)
    if text is None or environment.get(WATCHDOG_PID, str(os.getpid())) != str(os.getpid()):
        return None
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ConfigError(f"{WATCHDOG_US}={text}: not a number of microseconds")
    return int(text) / 1e6
