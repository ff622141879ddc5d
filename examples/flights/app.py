"""Delays by origin and hour, flights by carrier, and what was cancelled.

kafkalite-streams run examples/flights/app.py --bootstrap-servers 127.0.0.1:9092
"""

from typing import Any

from kafkalite.streams import Streams, avro, count, max_, mean, string, tumbling

# Results carry the flights' times: a broker's retention of a week would delete those of 2013.
KEPT = {"retention.ms": -1}

app = Streams("flight-delays", key=string())

flights = app.stream("flights", value=avro())
departed, cancelled = flights.branch(lambda f: f["dep_delay"] is not None, default=True)


def delay(flight: dict[str, Any]) -> dict[str, Any]:
    """What the aggregate needs, so that no more than this travels through the repartition topic."""
    return {"origin": flight["origin"], "dep_delay": flight["dep_delay"]}


(
    departed.map(delay)
    .group_by("origin")
    .window(tumbling("1h", grace="10m"))
    .aggregate(flights=count(), mean_delay=mean("dep_delay"), worst=max_("dep_delay"))
    .final()
    .to("delays-by-origin", value=avro("DelaysByOrigin"), create=KEPT)
)

cancelled.to("flights-cancelled", create=KEPT)

(
    flights.map(lambda f: {"carrier": f["carrier"]})
    .group_by("carrier")
    .count(name="flights-by-carrier")
    .to_stream()
    .to("flights-by-carrier", create={"cleanup.policy": "compact"})
)
