"""Avro's logical types are Python's own: dates, times, moments, decimals, UUIDs."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from avro_world import V1, World, record

from kafkalite.errors import SerdeError

MOMENT = datetime(2013, 1, 1, 10, 30, 15, 123456, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "logical", "value", "read"),
    [
        ("long", "timestamp-millis", MOMENT, MOMENT.replace(microsecond=123000)),
        ("long", "timestamp-micros", MOMENT, MOMENT),
        ("long", "timestamp-millis", 0, datetime(1970, 1, 1, tzinfo=UTC)),
        ("long", "timestamp-micros", datetime(1, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)),
        ("long", "local-timestamp-millis", datetime(2013, 1, 1), datetime(2013, 1, 1)),
        ("long", "local-timestamp-micros", datetime(2013, 1, 1), datetime(2013, 1, 1)),
        ("int", "date", date(1969, 12, 31), date(1969, 12, 31)),
        ("int", "time-millis", time(1, 2, 3, 4999), time(1, 2, 3, 4000)),
        ("long", "time-micros", time(23, 59, 59, 999999), time(23, 59, 59, 999999)),
        ("string", "uuid", UUID(int=7), UUID(int=7)),
    ],
    ids=str,
)
@pytest.mark.parametrize("nullable", [False, True])
def test_logical_types_are_pythons_own(
    world: World, kind: str, logical: str, value: Any, read: Any, nullable: bool
) -> None:
    plain: Any = {"type": kind, "logicalType": logical}
    schema = record(("v", ["null", plain] if nullable else plain))
    codec = world.codec(schema=schema)
    column = codec.serialize("t", [{"v": value}])
    assert codec.deserialize("t", column) == [{"v": read}]


def test_timestamps_of_another_zone_come_back_in_utc(world: World) -> None:
    codec = world.codec(schema={"type": "long", "logicalType": "timestamp-micros"})
    elsewhere = MOMENT.astimezone(timezone(timedelta(hours=-5)))
    (found,) = codec.deserialize("t", codec.serialize("t", [elsewhere]))
    assert found == MOMENT
    assert found.tzinfo is UTC


@pytest.mark.parametrize("fixed", [False, True])
def test_decimals(world: World, fixed: bool) -> None:
    plain: Any = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
    if fixed:
        plain |= {"type": "fixed", "name": "D", "size": 4}
    codec = world.codec(schema=plain)
    values = [Decimal("0.01"), Decimal("-9999.99"), Decimal(7), Decimal("1.50"), Decimal("-1.28")]
    assert codec.deserialize("t", codec.serialize("t", values)) == values
    for wrong, reason in (
        (Decimal("0.001"), "Scale provided"),
        (Decimal(1000000), "precision is bigger"),
        (Decimal("NaN"), "cannot write"),
    ):
        with pytest.raises(SerdeError, match=reason):
            codec.serialize("t", [wrong])


NAIVE = datetime(2013, 1, 1)
TIMESTAMP: Any = {"type": "long", "logicalType": "timestamp-millis"}
LOCAL: Any = {"type": "long", "logicalType": "local-timestamp-micros"}


@pytest.mark.parametrize(
    ("schema", "value", "place"),
    [
        (TIMESTAMP, NAIVE, ""),
        ({**TIMESTAMP, "logicalType": "timestamp-micros"}, NAIVE, ""),
        (record(("at", TIMESTAMP)), {"at": NAIVE}, "field 'at': "),
        (record(("at", ["null", TIMESTAMP])), {"at": NAIVE}, "field 'at': "),
        ({"type": "array", "items": TIMESTAMP}, [MOMENT, NAIVE], "field '[]': "),
        ({"type": "map", "values": [TIMESTAMP, "null"]}, {"x": NAIVE}, "field '{}': "),
        (
            {"type": "record", "name": "R", "fields": [
                {"name": "next", "type": ["null", "R"]}, {"name": "at", "type": TIMESTAMP}]},
            {"next": {"next": None, "at": NAIVE}, "at": MOMENT},
            "field 'next.at': ",
        ),
    ],
)  # fmt: skip
def test_a_datetime_without_a_time_zone_is_no_moment(
    world: World, schema: Any, value: Any, place: str
) -> None:
    codec = world.codec(schema=schema)
    reason = f"{place}datetime 2013-01-01 00:00:00 is no moment: give it a time zone"
    with pytest.raises(SerdeError, match=re.escape(reason)):
        codec.serialize("t", [value])


def test_a_datetime_without_a_time_zone_fits_a_local_timestamp(world: World) -> None:
    codec = world.codec(schema=record(("at", ["null", LOCAL]), ("moment", TIMESTAMP)))
    value = {"at": NAIVE, "moment": MOMENT.replace(microsecond=0)}
    assert codec.deserialize("t", codec.serialize("t", [value])) == [value]


def test_without_a_schema_a_datetime_needs_a_time_zone(world: World) -> None:
    codec = world.codec()
    with pytest.raises(SerdeError, match="field 'at': datetime 2013-01-01 00:00:00 is no moment"):
        codec.serialize("t", [{"at": NAIVE}])
    codec.serialize("t", [{"at": MOMENT}])
    with pytest.raises(SerdeError, match="is no moment: give it a time zone") as caught:
        codec.serialize("t", [{"at": MOMENT}, {"at": NAIVE}])
    assert caught.value.index == 1


def test_what_is_no_timestamp_is_said_to_be_none(world: World) -> None:
    with pytest.raises(SerdeError, match="str '2013' is no timestamp-millis"):
        world.codec(schema=TIMESTAMP).serialize("t", ["2013"])


def test_the_writers_logical_type_is_the_values(world: World) -> None:
    when = {"type": "long", "logicalType": "timestamp-millis"}
    plain = world.codec(schema=record(("v", "long"))).serialize("t", [{"v": 0}])
    dated = world.codec(schema=record(("v", when))).serialize("t", [{"v": 0}])
    assert world.codec(schema=record(("v", when))).deserialize("t", plain) == [{"v": 0}]
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert world.codec(schema=record(("v", "long"))).deserialize("t", dated) == [{"v": epoch}]


def test_a_default_is_of_its_logical_type(world: World) -> None:
    column = world.codec(schema=V1).serialize("t", [{"origin": "x"}])
    when = {"type": "long", "logicalType": "timestamp-millis"}
    reader = world.codec(schema=record(("when", when, 1000)))
    moment = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert reader.deserialize("t", column) == [{"when": moment}]
    wider = record(("origin", "string"), ("when", ["null", when][::-1], 1000), ("b", "bytes", "ÿ"))
    written = world.codec(schema=wider).serialize("u", [{"origin": "x"}])
    found = world.codec().deserialize("u", written)
    assert found == [{"origin": "x", "when": moment, "b": b"\xff"}]
