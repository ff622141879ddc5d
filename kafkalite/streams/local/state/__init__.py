"""State of tasks: stores of rows, and what they are kept in.                              [P]

    store       rows as objects: a cache of those that are used, and what the changelog has not
                seen yet; views for users
    ordered     the same of rows in the order of keys that their operator lays out
    window_keys what stores of sessions and sliding windows share: their keys, their view
    spans       rows of sessions and sliding windows as objects; packed ones: local/spans
    segments    rows by key and time, in segments of time that leave as a whole: sides of joins
    port        what a task asks of either
    kept        rows as bytes, and how far they follow the changelog
    forms       how rows stand in a backend: tables, windows
    backend     the port to ordered bytes: memory, rocks
    directory   where backends on disk are, and which process has them

Owns   nothing itself; imports of the rest of the engine come here.
"""

from kafkalite.streams.local.state.forms import NO_WINDOW, START
from kafkalite.streams.local.state.ordered import OrderedStore, Row
from kafkalite.streams.local.state.port import TaskStore
from kafkalite.streams.local.state.segments import SegmentStore
from kafkalite.streams.local.state.spans import Span, SpanStore
from kafkalite.streams.local.state.store import (
    Bucket,
    Layout,
    StateStore,
    StoreView,
    headers_of,
    stamps_of,
)

__all__ = [
    "NO_WINDOW",
    "START",
    "Bucket",
    "Layout",
    "OrderedStore",
    "Row",
    "SegmentStore",
    "Span",
    "SpanStore",
    "StateStore",
    "StoreView",
    "TaskStore",
    "headers_of",
    "stamps_of",
]
