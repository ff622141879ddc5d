"""How many of those who see an advertisement click on it, by campaign and hour.

kafkalite-streams run examples/clicks/app.py -b 127.0.0.1:9092 --until-caught-up
"""

from typing import Any

from kafkalite.streams import Streams, count, json, mean, string, tumbling

app = Streams("click-through", key=string(), value=json())

impressions = app.stream("impressions", timestamp="at")  # by impression
clicks = app.stream("clicks", timestamp="at")  # by the impression that was clicked


def pair(impression: Any, click: Any) -> dict[str, Any]:
    """Both sides of a pair, one of which may be missing."""
    return {"impression": impression, "click": click}


# A click counts within ten minutes of its impression. An impression without a click and a click
# without an impression come once nothing can follow any more, with None in the place of the other.
pairs = impressions.join(
    clicks,
    pair,
    within=("0s", "10m"),
    how="outer",
    grace="5m",
    name="clicked",
)
shown, stray = pairs.branch(lambda pair: pair["impression"] is not None, default=True, name="side")

stray.map(lambda pair: pair["click"]).to("stray-clicks", create={})

# Impressions without a click come some twenty minutes late: the window waits for them.
(
    shown.map(lambda pair: {**pair["impression"], "clicked": int(pair["click"] is not None)})
    .group_by("campaign")
    .window(tumbling("1h", grace="30m"))
    .aggregate(shown=count(), rate=mean("clicked"), name="rates")
    .final()
    .to("click-through", create={})
)
