"""The watchdog's process: it kills a broker that gives no sign of life for too long.        [IO]

    watchdog_child.py PIDFD PIPE TICK_SECONDS TICKS LINE

Each byte in the pipe is a sign of life. So many ticks without one, each counted here after waiting
for it, and the process of the pidfd gets SIGKILL. No clock is compared: while the machine sleeps,
or this process is stopped together with the broker (Ctrl-Z), no ticks pass, so nobody is killed for
them. The pipe's end is the broker's, or the beginning of its stop: then this process ends.

Owns   nothing but the count. The pidfd names the one process that can ever be hit.
Never  imports more than it needs, kafkalite least of all: it runs as a bare interpreter of 5 MB.
Fails  never; a broker that is gone already needs no signal.
"""

import os
import select
import signal
import sys
import time

BEATS_MAX = 4096  # read at once: those that came while this process was stopped
NO_TIME = "1970-01-01T00:00:00.000Z"  # in LINE, which goes to stderr with the time of the kill


def main() -> None:
    """Until the pipe ends, or the broker is silent for too long."""
    pidfd, pipe, tick_s, ticks = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # sent to the whole group: the broker decides
    silent = 0
    while silent < ticks:
        if not select.select([pipe], [], [], float(tick_s))[0]:
            silent += 1
        elif os.read(pipe, BEATS_MAX):
            silent = 0
        else:
            return
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return
    now = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
    os.write(2, sys.argv[5].replace(NO_TIME, now).encode())


if __name__ == "__main__":
    main()
