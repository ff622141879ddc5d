"""Paid orders by city and hour: an application that moves to Spark and back.

kafkalite-streams run examples/moving/app.py -b 127.0.0.1:9092 --until-caught-up
"""

from kafkalite.streams import Streams, count, json, left, right, string, struct, sum_, tumbling

app = Streams("shop", key=string(), value=json())

orders = app.stream("orders", timestamp="at")  # by order
payments = app.stream("payments", timestamp="at")  # by order
cities = app.table("cities", name="cities")  # by city

# Both sides of a join wait for the other one: this is state in every partition.
paid = orders.join(
    payments,
    struct(city=left("city"), euros=right("euros")),
    within="10m",
    grace="10m",
    name="paid",
)

by_city = paid.select_key("city")

# Hours stay open for a day: at a move all of them wait for more.
(
    by_city.group_by_key()
    .window(tumbling("1h", grace="1d"))
    .aggregate(orders=count(), euros=sum_("euros"), name="hours")
    .to_stream()
    .to("turnover", create={})
)

by_city.join(cities, struct(country=right("country"), euros=left("euros")), name="where").to(
    "sales", create={}
)
