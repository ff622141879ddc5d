"""`kafkalite registry start`: Confluent's REST API for schemas, before the topic of any Kafka. [IO]

stdout gets one line as soon as clients can connect; stderr gets the log. SIGTERM and SIGINT end it.

Fails  with one line if the address is not available. It waits for brokers that do not answer.
"""

from __future__ import annotations

import signal
from typing import Annotated

import typer

from kafkalite.cli.options import BOOTSTRAP, Bootstrap, examples, program
from kafkalite.cli.output import to_json

cli = program("Run a schema registry.")


@cli.callback()
def commands() -> None:
    """Run a schema registry."""


@cli.command(
    epilog=examples(
        "kafkalite registry start",
        "kafkalite registry start -b kafka-1:9092,kafka-2:9092 --listen 0.0.0.0:8081",
    )
)
def start(
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    listen: Annotated[
        str, typer.Option(help="HOST:PORT; port 0 takes a free one.")
    ] = "127.0.0.1:8081",
    json: Annotated[bool, typer.Option("--json", help="Print the ready line as JSON.")] = False,
) -> None:
    """Serve the schemas in `_schemas` until Ctrl-C or SIGTERM.

    Several registries may serve one topic. It is created if it does not exist.
    """
    from kafkalite.cli.server_log import log_to_stderr
    from kafkalite.serde.registry_server import RegistryServer

    log_to_stderr()
    stop = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)  # threads inherit it: only `sigwait` gets them
    server = RegistryServer(listen)
    try:
        server.start(bootstrap_servers)
        line = f"kafkalite registry is ready at {server.url} (log at {bootstrap_servers})"
        if json:
            line = to_json({"url": server.url, "log": bootstrap_servers}).decode()
        print(line, flush=True)
        signal.sigwait(stop)
    finally:
        server.close()
