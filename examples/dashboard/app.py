"""The ten pages of a site that were seen most, anew every five seconds.

`dashboard.py` runs this topology and shows its store `top` in a browser.
"""

from typing import Any

from kafkalite.streams import Streams, Windowed, json, string, top_k, tumbling

app = Streams("top-pages", key=string(), value=json())


def rank(key: Windowed[str], views: int) -> dict[str, Any]:
    """How often a page was seen in a window. `top_k` compares counts first, then names."""
    return {"rank": [views, key.key]}


# How often each page was seen in five seconds, once they are over; then the ten largest of these.
# Their windows stay in the store for another minute.
(
    app.stream("views", timestamp="at")
    .group_by("page", name="by-page")
    .window(tumbling("5s", grace="1s"))
    .count(name="views-by-page")
    .final(idle="2s")
    .map(rank, with_key=True)
    .group_by(lambda _: "all pages", name="all-pages")
    .window(tumbling("5s", grace="1m"))
    .aggregate(top_k(10, "rank"), name="top")
)
