"""Orders with the towns of their postal codes, which a service on the network knows.

kafkalite-streams run examples/enrichment/app.py -b 127.0.0.1:9092 --until-caught-up
"""

import os
from functools import cache
from typing import Any

import aiohttp

from kafkalite.streams import Streams, json, string

Order = dict[str, Any]

# A commit waits for the calls under way: with a second between commits it does so less often.
app = Streams(
    "order-towns",
    key=string(),
    value=json(),
    dead_letter_topic="order-towns-dead",
    commit_interval="1s",
)


@cache
def towns() -> aiohttp.ClientSession:
    """The connections to the service, made at the first call and shared by all."""
    return aiohttp.ClientSession(os.environ.get("TOWNS", "http://127.0.0.1:8099"))


async def with_town(order: Order) -> Order:
    """An order with its town. Raises where the service fails, and is then called again."""
    async with towns().get(f"/towns/{order['postal_code']}") as answer:
        if answer.status == 404:
            return {**order, "town": None, "state": None}
        answer.raise_for_status()
        return {**order, **await answer.json()}


(
    app.stream("orders", timestamp="at")
    .map_async(with_town, concurrency=20, timeout="2s", retries=3, on_error="dlq", name="town")
    .to("orders-with-town", create={})
)
