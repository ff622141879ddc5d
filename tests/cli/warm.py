"""Commands as processes of their own that need not import anything: forks of one that has.

    kitchen = Kitchen(seconds_max=60)
    kitchen.run(("kafkalite", "topics", "list"), stdin=b"", environ=os.environ)

A command alone takes half a second to start, on a busy machine several, and there are hundreds of
them. A fork has file descriptors, an environment, signals and an exit code of its own as any
process. It ends as any interpreter does, but for taking its modules apart: that would copy all
memory that it shares with the others.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib import import_module

REQUEST_BYTES_MAX = 1 << 17
PROGRAMS = {
    "kafkalite": "kafkalite.cli",
    "kafkalite-streams": "kafkalite.cli.streams",
    "kafkalite-spark": "kafkalite.cli.spark",
}
# typer imports what reads flags, and what shows help, when there is something to read or show.
TRIED = (["topics", "create", "t", "--partitions", "many"], ["--help"])
USED_BY_MOST = (
    "encodings.idna", "kafkalite.cli.log_dump", "kafkalite.cli.log_verify",
    "kafkalite.cli.records_in", "kafkalite.cli.records_out", "kafkalite.clients.admin.client",
    "kafkalite.clients.consumer.consumer", "kafkalite.clients.producer.producer",
    "kafkalite.node", "kafkalite.serde.registry_log", "kafkalite.streams",
    "rich.console", "rich.table", "rich.text",
)  # fmt: skip


class Kitchen:
    """The process that forks, and the socket over which it is asked to. A command may take
    `seconds_max`."""

    def __init__(self, seconds_max: float) -> None:
        self._seconds_max = seconds_max
        self._asked, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    def run(
        self, command: Iterable[str], stdin: bytes, environ: Mapping[str, str]
    ) -> tuple[int, bytes, bytes]:
        """Runs one command, a program and its arguments, to its end: its exit code, stdout and
        stderr."""
        request = json.dumps({"command": list(command), "environ": dict(environ)}).encode()
        reading, writing = os.pipe()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given = [reading, out.fileno(), err.fileno()]
            socket.send_fds(self._asked, [request], given)
            os.close(reading)
            feeding = threading.Thread(target=feed, args=(writing, stdin))
            feeding.start()
            self._asked.settimeout(self._seconds_max)
            code = int(self._asked.recv(REQUEST_BYTES_MAX))
            feeding.join()
            out.seek(0)
            err.seek(0)
            return code, out.read(), err.read()

    def close(self) -> None:
        """Ends the process."""
        self._asked.close()
        self._process.wait()


def feed(writing: int, data: bytes) -> None:
    with open(writing, "wb") as pipe:
        try:
            pipe.write(data)
            pipe.flush()
        except BrokenPipeError:  # as with any command, it may have had enough
            pass


def fork_for_each_request(asked: socket.socket) -> None:
    """Returns in the child that is to be the command; ends when nobody asks any more."""
    while True:
        message, files, _, _ = socket.recv_fds(asked, REQUEST_BYTES_MAX, 3)
        if not message:
            sys.exit()
        request = json.loads(message)
        child = os.fork()
        if not child:
            asked.close()
            for place, file in enumerate(files):
                os.dup2(file, place)
                os.close(file)
            os.environ.clear()
            os.environ.update(request["environ"])
            time.tzset()
            sys.argv = request["command"]
            return
        for file in files:
            os.close(file)
        _, status = os.waitpid(child, 0)
        asked.send(str(os.waitstatus_to_exitcode(status)).encode())


def import_all() -> None:
    """Imports what commands would import."""
    from kafkalite.cli import app, main

    app.build()
    for used in (*PROGRAMS.values(), *USED_BY_MOST):
        import_module(used)
    for arguments in TRIED:
        sys.argv = ["kafkalite", *arguments]
        with suppress(SystemExit), redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            main()
    gc.freeze()  # no child shall look at it, and so copy it


def end(code: int) -> None:
    """Ends this process with the exit code."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()  # complains on stderr of what nobody closed
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    place = int(sys.argv[1])
    import_all()
    fork_for_each_request(socket.socket(fileno=place))
    try:
        import_module(PROGRAMS[sys.argv[0]]).main()
    except SystemExit as ended:
        end(int(ended.code or 0))
