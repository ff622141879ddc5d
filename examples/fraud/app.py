"""Cards that somebody tries out before a large payment, and cards that are in two places at once.

kafkalite-streams run examples/fraud/app.py -b 127.0.0.1:9092 --until-caught-up
"""

from kafkalite.streams import Streams, col, json, left, lit, right, string, struct

app = Streams("card-fraud", key=string(), value=json())

cards = app.table("cards")  # by card: its owner, home country and limit
merchants = app.global_table("merchants")  # by merchant: its name and country

# Payments by card, each with what is known of the card and of the merchant.
payments = (
    app.stream("payments", timestamp="at")
    .join(cards, lambda payment, card: {**payment, "card": card})
    .join(
        merchants,
        lambda payment, merchant: {**payment, "country": merchant["country"]},
        key="merchant",
    )
)

# A payment of some cents and then, within ten minutes, one beyond the limit. An owner who confirms
# a payment with a PIN in between ends the suspicion.
tried_out = payments.match(
    small=col("amount") < 2,
    large=col("amount") > col("card")["limit"],
    not_between="pin",
    within="10m",
    name="tried-out",
)
tried_out.select(
    reason=lit("tried out"), owner=col("large")["card"]["owner"], amount=col("large")["amount"]
).to("alerts", create={})

# Two payments within twenty minutes, one at home and the other abroad.
at_home, abroad = payments.branch(
    col("country") == col("card")["country"], default=True, name="by-place"
)
at_home.join(
    abroad,
    struct(
        reason=lit("in two places"),
        owner=left("card")["owner"],
        amount=right("amount"),
    ),
    within="20m",
    name="two-places",
).to("alerts", create={})
