"""Commands as processes of their own that need not import anything: forks of one that has.

    subprocess.Popen = Popen        # in the process that starts them
    subprocess.Popen([sys.executable, "-m", "kafkalite.cli", "server", "start", ...])
    subprocess.Popen([sys.executable, "tests/streams/chaos_app.py", ...])
    subprocess.run([script("kafkalite"), "topics", "list"])

A command alone takes half a second to start, on a busy machine several, and the tests start more
than a thousand. A fork has file descriptors, an environment, signals and an exit code of its own
as any process, and it is a child of the process that wanted it. It ends as any interpreter does,
but for taking its modules apart: that would copy all memory that it shares with the others.

    test ──asks──> kitchen ──forks──> nobody ──forks──> the command
                                      ends at once: the test, its subreaper, adopts the command
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import inspect
import io
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
REQUEST_BYTES_MAX = 1 << 17
PR_SET_CHILD_SUBREAPER = 36
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
    "kafkalite.node", "kafkalite.serde.registry_log", "kafkalite.serde.registry_server",
    "kafkalite.streams", "rich.console", "rich.table", "rich.text", "rocksdict",
)  # fmt: skip
# A fork gets a folder, an environment, streams and a session. Other wishes take a usual process.
WITHOUT_MORE = {
    "executable": None, "preexec_fn": None, "close_fds": True, "pass_fds": (), "shell": False,
    "restore_signals": True, "gid": None, "gids": None, "uid": None, "umask": -1,
    "process_group": -1,
}  # fmt: skip
# What a child inherits of the thread that begins it, by its line in proc(5).
INHERITED = ("Umask", "Uid", "Gid", "Groups", "SigBlk", "SigIgn", "Cap", "Cpus_allowed")


def script(program: str) -> str:
    """The console script of a program."""
    return str(Path(sys.executable).with_name(program))


class Popen(subprocess.Popen[Any]):
    """A process, which begins as a fork if it is a command of ours, or a program of the tests."""

    def _execute_child(self, *given: Any) -> None:
        plain = super()._execute_child  # type: ignore[misc]
        wanted = inspect.signature(plain).bind(*given).arguments
        request = request_for(wanted)
        if request is None:
            plain(*given)
            return
        self.pid = kitchen().begin(request, streams_of(wanted))
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(wanted[name] for name in pipes))  # type: ignore[attr-defined]


def request_for(wanted: Mapping[str, Any]) -> bytes | None:
    """The request for a fork, if the process can be one."""
    if not is_ours(wanted["args"]) or any(map(os.isatty, streams_of(wanted))):
        return None
    if any(wanted.get(name, usual) != usual for name, usual in WITHOUT_MORE.items()):
        return None
    environ = dict(os.environ if wanted["env"] is None else wanted["env"])
    if surroundings(environ) != kitchen().surroundings:
        return None
    request = json.dumps(
        {
            "command": wanted["args"],
            "folder": os.path.abspath(wanted["cwd"] or "."),
            "environ": environ,
            "is_session": wanted["start_new_session"],
        }
    ).encode()
    return request if len(request) < REQUEST_BYTES_MAX else None


def is_ours(command: Any) -> bool:
    """Whether these are the words of a command of ours, or run a program of the tests."""
    if not isinstance(command, list) or not command:
        return False
    if not all(isinstance(word, str) for word in command):
        return False
    if command[:2] == [sys.executable, "-m"]:
        return len(command) > 2 and command[2] in PROGRAMS.values()
    if command[:1] == [sys.executable]:
        return len(command) > 1 and TESTS in Path(command[1]).parents
    return command[0] in map(script, PROGRAMS)


def streams_of(wanted: Mapping[str, Any]) -> list[int]:
    """The files that are to be stdin, stdout and stderr."""
    given = [int(wanted[name]) for name in ("p2cread", "c2pwrite", "errwrite")]
    return [own if file < 0 else file for own, file in enumerate(given)]


def surroundings(environ: Mapping[str, str]) -> tuple[object, ...]:
    """What a fork has from the kitchen, and a process from whoever begins it: the variables that
    an interpreter reads when it starts, users, rights, signals, namespaces and limits."""
    of_interpreter = {name: text for name, text in environ.items() if name.startswith("PYTHON")}
    thread = Path("/proc/thread-self")
    lines = (thread / "status").read_text().splitlines()
    inherited = [line for line in lines if line.startswith(INHERITED)]
    spaces = [os.readlink(space) for space in sorted((thread / "ns").iterdir())]
    return of_interpreter, inherited, spaces, (thread / "limits").read_text()


class Kitchen:
    """The process that forks, and the socket over which it is asked to."""

    def __init__(self) -> None:
        self.surroundings = surroundings(os.environ)
        self._libc = ctypes.CDLL(None)
        self._lock = threading.Lock()
        self._asked, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                executable=sys.executable,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    def begin(self, request: bytes, files: list[int]) -> int:
        """Begins a process with these files as stdin, stdout and stderr; its id."""
        with self._lock:
            self._libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._asked, [request], files)
                answer = self._asked.recv(REQUEST_BYTES_MAX)
            finally:
                self._libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        assert answer, "the process that forks has ended"
        return int(answer)


@cache
def kitchen() -> Kitchen:
    """The one of this process."""
    return Kitchen()


def fork_for_each_request(asked: socket.socket) -> list[str]:
    """Returns the command in the child that is to be it; ends when nobody asks any more."""
    while True:
        message, files, _, _ = socket.recv_fds(asked, REQUEST_BYTES_MAX, 3)
        if not message:
            sys.exit()
        reading, writing = os.pipe()
        nobody = os.fork()
        if not nobody:
            if pid := os.fork():
                os.write(writing, str(pid).encode())
                os._exit(0)
            for file in (asked.fileno(), reading, writing):
                os.close(file)
            asked.detach()
            return become(json.loads(message), files)
        os.waitpid(nobody, 0)
        asked.send(os.read(reading, REQUEST_BYTES_MAX))
        for file in (*files, reading, writing):
            os.close(file)


def become(request: Mapping[str, Any], files: list[int]) -> list[str]:
    """Makes this process what was asked for; its command."""
    for place, file in enumerate(files):
        os.dup2(file, place)
    for file in files:
        if file > 2:
            os.close(file)
    if request["is_session"]:
        os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environ"])
    time.tzset()
    return list(request["command"])


def run(command: list[str]) -> None:
    """Runs a module as `python -m` does, a file, or what a console script calls."""
    if command[1:2] == ["-m"]:
        sys.argv, sys.orig_argv = command[2:], command
        sys.path[0] = os.getcwd()
        if not hasattr(sys.modules[command[2]], "__path__"):
            del sys.modules[command[2]]  # it is `__main__` alone, as in any interpreter
        runpy.run_module(command[2], run_name="__main__", alter_sys=True)
        return
    if command[0] == sys.executable:
        sys.argv, sys.orig_argv = command[1:], command
        sys.path[0] = str(Path(command[1]).parent)
        runpy.run_path(command[1], run_name="__main__")
        return
    sys.argv, sys.orig_argv = command, [sys.executable, *command]
    sys.path[0] = str(Path(sys.executable).parent)
    import_module(PROGRAMS[Path(command[0]).name]).main()


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
    command = fork_for_each_request(socket.socket(fileno=place))
    try:
        run(command)
    except SystemExit as ended:
        end(int(ended.code or 0))
