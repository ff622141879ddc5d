"""Visits of a web site, and its landing pages, from the log of its web server.

kafkalite-streams run examples/sessions/app.py -b 127.0.0.1:9092 --until-caught-up
"""

import re
from datetime import datetime
from typing import Any

from kafkalite.streams import (
    Streams,
    col,
    count,
    first,
    json,
    last,
    mean,
    session,
    string,
    sum_,
    when,
)

LINE = re.compile(
    r'(?P<host>\S+) \S+ \S+ \[(?P<time>[^]]+)\] "GET (?P<path>\S+) [^"]*" '
    r'(?P<status>\d{3}) (?P<bytes>\d+) "(?P<referrer>[^"]*)" "(?P<agent>[^"]*)"'
)


def parse(line: str) -> dict[str, Any]:
    """A line in the combined log format as a request."""
    if (found := LINE.fullmatch(line)) is None:
        raise ValueError(f"not a line of a web log: {line[:80]!r}")
    request: dict[str, Any] = found.groupdict()
    return request | {"status": int(request["status"]), "bytes": int(request["bytes"])}


def time_of(line: str) -> int:
    """When the request was made, in epoch milliseconds."""
    at = datetime.strptime(parse(line)["time"], "%d/%b/%Y:%H:%M:%S %z")
    return int(at.timestamp() * 1000)


app = Streams("web-sessions", key=string(), on_error="dlq", dead_letter_topic="web-log-unreadable")

requests = app.stream("web-log", value=string(), timestamp=time_of).map(parse)

# A visit ends when its host has asked for no page for half an hour.
visits = (
    requests.filter((col("status") == 200) & ~col("agent").str.contains("bot"))
    .group_by("host")
    .window(session("30m", grace="2m"))
    .aggregate(
        pages=count(), entry=first("path"), exit=last("path"), bytes=sum_("bytes"), name="visits"
    )
)
visits.late().to("web-log-late", value=json(), create={})

ended = visits.final()
ended.to("visits", value=json(), create={})

(
    ended.assign(bounce=when(col("pages") == 1).then(1).otherwise(0))
    .group_by("entry")
    .aggregate(visits=count(), bounces=mean("bounce"), pages=mean("pages"), name="landing-pages")
    .to_stream()
    .to("landing-pages", value=json(), create={"cleanup.policy": "compact"})
)
