"""The flights of the example: delays by origin and hour, cancelled ones, flights by carrier.

The same topology as `examples/flights/app.py`, with lambdas and with expressions, over the same
336,776 records. Kafka Streams has no such program: ours alone.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from kafkalite.clients.sync import Admin
from kafkalite.core.types import TopicPartition
from kafkalite.streams import Streams, avro, col, count, max_, mean, tumbling

FLIGHTS: Final = "flights"
LOADER: Final = Path(__file__).parents[2] / "examples" / "flights" / "load.py"
KEPT: Final = {"retention.ms": -1}


def load_flights(address: str) -> int:
    """Fills the topic as the example does; how many records."""
    command = [sys.executable, str(LOADER), "--bootstrap-servers", address]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with Admin(address) as admin:
        (topic,) = admin.describe_topics([FLIGHTS])
        everywhere = [TopicPartition(FLIGHTS, p.partition) for p in topic.partitions]
        return sum(admin.end_offsets(everywhere).values())


def functions(app: Streams, source: str, target: str) -> None:
    flights = app.stream(source, value=avro())
    departed, cancelled = flights.branch(lambda f: f["dep_delay"] is not None, default=True)
    delays = departed.map(lambda f: {"origin": f["origin"], "dep_delay": f["dep_delay"]})
    (
        delays.group_by("origin")
        .window(tumbling("1h", grace="10m"))
        .aggregate(flights=count(), mean_delay=mean("dep_delay"), worst=max_("dep_delay"))
        .final()
        .to(f"{target}-delays", value=avro("DelaysByOrigin"), create=KEPT)
    )
    cancelled.to(f"{target}-cancelled", create=KEPT)
    carriers = flights.map(lambda f: {"carrier": f["carrier"]}).group_by("carrier")
    carriers.count(name="flights-by-carrier").to_stream().to(f"{target}-carriers", create=KEPT)


def expressions(app: Streams, source: str, target: str) -> None:
    flights = app.stream(source, value=avro())
    departed, cancelled = flights.branch(col("dep_delay").is_not_null(), default=True)
    (
        departed.select("origin", "dep_delay")
        .group_by("origin")
        .window(tumbling("1h", grace="10m"))
        .aggregate(flights=count(), mean_delay=mean("dep_delay"), worst=max_("dep_delay"))
        .final()
        .to(f"{target}-delays", value=avro("DelaysByOrigin"), create=KEPT)
    )
    cancelled.to(f"{target}-cancelled", create=KEPT)
    carriers = flights.select("carrier").group_by("carrier")
    carriers.count(name="flights-by-carrier").to_stream().to(f"{target}-carriers", create=KEPT)
