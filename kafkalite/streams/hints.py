"""Hints for names that users of other libraries try on a stream, a group or a table.       [P]

Owns   which word of Kafka Streams, Faust, Quix and pandas is which word here.
Source the APIs of Kafka Streams 4, Faust 0.11, Quix Streams 3, pandas 2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Final

_GROUP_FIRST: Final = 'group first: .group_by_key() or .group_by("field"), then'
_WINDOW: Final = 'tumbling("1h"), hopping("1h", "10m"), session("30m")'
_AGGREGATES: Final = {
    "sum": 'total=sum_("field")',
    "mean": 'mean=mean("field")',
    "avg": 'mean=mean("field")',
    "min": 'least=min_("field")',
    "max": 'most=max_("field")',
    "first": 'first=first("field")',
    "last": 'last=last("field")',
    "collect": 'all=collect("field")',
    "fold": "state=fold(init, add)",
}
_BOTH: Final = {
    "map_values": ".map(f): it takes the value and keeps the key",
    "transform_values": ".map(f), or .process_values(Processor) for one with stores",
    "apply": ".map(f): it takes the value and keeps the key",
    "inner_join": ".join(other, f)",
    "left_join": '.join(other, f, how="left")',
    "outer_join": '.join(other, f, how="outer")',
    "key_by": ".select_key(f)",
    "groupby": ".group_by(f)",
    "where": ".filter(f)",
}

STREAM: Final[Mapping[str, str]] = {
    **_BOTH,
    **{name: f"{_GROUP_FIRST} .aggregate({aggregate})" for name, aggregate in _AGGREGATES.items()},
    **dict.fromkeys(("aggregate", "agg"), f"{_GROUP_FIRST} .aggregate(n=count())"),
    **dict.fromkeys(("count", "reduce"), f"{_GROUP_FIRST} .count() or .reduce(f)"),
    **dict.fromkeys(
        (
            "window",
            "windowed_by",
            "tumbling_window",
            "hopping_window",
            "sliding_window",
            "session_window",
            "tumbling",
            "hopping",
        ),
        f"{_GROUP_FIRST} .window(w), w being {_WINDOW}",
    ),
    **dict.fromkeys(("transform", "flat_transform"), ".process(Processor, stores=[…])"),
    **dict.fromkeys(("async_map", "map_values_async", "amap"), ".map_async(f)"),
    "flat_map_values": ".flat_map(f): it takes the value and keeps the key",
    "foreach": ".for_each(f)",
    "update": ".peek(f) or .for_each(f)",
    "print": ".peek(print)",
    "split": ".branch(predicate, …, default=True)",
    "through": ".repartition(), or .to(topic) and app.stream(topic)",
    "union": ".merge(other)",
    "concat": ".merge(other)",
    "sink": ".to(topic)",
    "to_topic": ".to(topic)",
    "to_stream": "nothing: this is a stream already",
    "dropna": ".filter(lambda v: v is not None)",
}
GROUPED: Final[Mapping[str, str]] = {
    **{name: f".aggregate({aggregate})" for name, aggregate in _AGGREGATES.items()},
    "agg": ".aggregate(n=count())",
    **dict.fromkeys(
        (
            "windowed_by",
            "tumbling_window",
            "hopping_window",
            "sliding_window",
            "session_window",
            "tumbling",
            "hopping",
        ),
        f".window(w), w being {_WINDOW}",
    ),
    **dict.fromkeys(("filter", "map", "to"), "it before grouping, or after .aggregate(…)"),
}
TABLE: Final[Mapping[str, str]] = {
    **_BOTH,
    **{name: f".group_by(f).aggregate({aggregate})" for name, aggregate in _AGGREGATES.items()},
    **dict.fromkeys(("count", "aggregate", "reduce"), ".group_by(f) first"),
    **dict.fromkeys(("window", "windowed_by"), ".window(w) before the aggregate"),
    **{
        name: f".to_stream().{word}"
        for name, word in {
            "to": "to(topic)",
            "sink": "to(topic)",
            "to_topic": "to(topic)",
            "peek": "peek(f)",
            "for_each": "for_each(f)",
            "foreach": "for_each(f)",
            "merge": "merge(other)",
            "branch": "branch(predicate, …)",
            "flat_map": "flat_map(f)",
            "select_key": "select_key(f)",
        }.items()
    },
    "emit": ".to_stream() for every update, .final() for one record a window",
    "current": ".to_stream() for every update",
}
GLOBAL_TABLE: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("filter", "filter_not", "map", "select", "assign", "drop", "rename", "where"),
        "it on the stream that joins the table, or app.table(topic)",
    ),
    **dict.fromkeys(("join", *_BOTH), "stream.join(global_table, f, key=…)"),
    **dict.fromkeys(("to_stream", "to", "group_by"), "app.table(topic), or app.stream(topic)"),
}
BUILDER: Final[Mapping[str, str]] = {
    **dict.fromkeys(("topic", "dataframe", "agent", "source"), ".stream(topic)"),
    "global_ktable": ".global_table(topic)",
}


def no_such(kind: str, name: str, hints: Mapping[str, str], there: Iterable[str]) -> str:
    """What to say of a `name` that objects of `kind` do not have; `there` are the names they do."""
    says = f"{kind!r} has no {name!r}"
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    snake = re.sub(r"^k_?(stream|table)$", r"\1", snake)
    names = [each for each in there if not each.startswith("_")]
    if hint := hints.get(name) or hints.get(snake):
        return f"{says}: use {hint}"
    if snake in names:
        return f"{says}: use .{snake}"
    near = get_close_matches(snake, [*names, *hints], 1)
    if not near:
        return says
    return f"{says}: did you mean {hints.get(near[0]) or '.' + near[0]}?"
