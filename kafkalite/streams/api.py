"""The fluent builder: Kafka Streams' operators as methods. Building runs nothing.          [P]

    app = StreamsBuilder("clicks-by-user", key=string())
    clicks = app.stream("clicks", value=json())
    clicks.filter("valid").group_by("user").window(tumbling("1m")).count().final().to("counts")

Every method adds a node to the plan and returns what can be built upon it. Functions take the
value; `with_key=True` passes key and value, `with_record=True` one `Record`; a field name stands
for a function that takes the field out of the value. `name=` names the operator, else its place
does. `on_error=` says what becomes of records on which the operator fails: "fail", "skip", "dlq".

Owns   the nodes of one topology until `plan()` hands them out as data.
Fails  with TopologyError, which names the operator, where the mistake stands.
Source Kafka Streams' StreamsBuilder, KStream, KGroupedStream, KTable, KGroupedTable.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Generic, Literal, TypeAlias, Unpack, overload
from zlib import crc32

from kafkalite.core.generics import K, K_co, V, V_co
from kafkalite.errors import TopologyError
from kafkalite.serde.primitives import bytes_
from kafkalite.serde.serde import Serde
from kafkalite.streams import hints
from kafkalite.streams import plan as p
from kafkalite.streams.describe import Format, describe
from kafkalite.streams.draft import Draft, Faces, NotBuilt, history_ms, serde_or_none, topics_of
from kafkalite.streams.drawing import draw
from kafkalite.streams.durations import Duration, not_negative
from kafkalite.streams.expressions.check import Shape
from kafkalite.streams.expressions.tree import TIMESTAMP, VALUE
from kafkalite.streams.expressions.types import INT64
from kafkalite.streams.functions import Function, UserFunction, function_of
from kafkalite.streams.global_table import GlobalTable
from kafkalite.streams.groups import Grouped
from kafkalite.streams.naming import check_name
from kafkalite.streams.options import GlobalOptions, SourceOptions, TableSourceOptions
from kafkalite.streams.rewrites import sub_topologies
from kafkalite.streams.shapes import type_of_serde
from kafkalite.streams.stream import Stream
from kafkalite.streams.table import Table

__all__ = ["Grouped", "Stream", "StreamsBuilder", "Table"]

Topics: TypeAlias = str | Sequence[str] | re.Pattern[str]

RESETS: Final = ("earliest", "latest")
MAX_FUTURE: Final = "1d"
FACES: Final = Faces(Stream, Grouped, Table)


class StreamsBuilder(NotBuilt, Generic[K_co, V_co]):
    """A topology under construction.

    `application_id` prefixes internal topics and names the consumer group; `key` and `value` are
    the serdes where nothing else says one. `on_error="dlq"` needs a `dead_letter_topic`. Records
    further than `max_future` (a day) ahead of the wall clock count as errors.
    """

    hints = hints.BUILDER

    def __init__(
        self,
        application_id: str,
        *,
        key: Serde[K_co] | None = None,
        value: Serde[V_co] | None = None,
        on_error: p.OnError = "fail",
        dead_letter_topic: str | None = None,
        max_future: Duration | None = None,
    ) -> None:
        self.application_id = check_name(application_id, "application id")
        self._key = serde_or_none(key, "key=", application_id)
        self._value = serde_or_none(value, "value=", application_id)
        if dead_letter_topic is not None:
            check_name(dead_letter_topic, f"{application_id}: dead_letter_topic")
        self._dead_letter_topic = dead_letter_topic
        self._max_future_ms = not_negative(
            MAX_FUTURE if max_future is None else max_future, f"{application_id}: max_future"
        )
        self._draft = Draft(FACES, has_dead_letters=dead_letter_topic is not None)
        self._on_error = self._draft.policy(on_error, application_id) or "fail"

    def plan(self) -> p.Plan:
        """The current topology, immutable. Operators that are added later do not change it."""
        return p.Plan(
            self.application_id,
            tuple(self._draft.nodes),
            self._key,
            self._value,
            self._on_error,
            self._dead_letter_topic,
            self._max_future_ms,
            self._draft.numbered_names,
        )

    def describe(self, format: Format = "text") -> str:  # noqa: A002 - the word users know
        """Sub-topologies, operators, stores and topics, in one of several forms."""
        plan = self.plan()
        if format == "svg":
            return draw(plan.application_id, sub_topologies(plan))
        return describe(plan, format)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """The topology as a notebook shows it."""
        return {"text/plain": self.describe(), "image/svg+xml": self.describe("svg")}

    @overload
    def stream(
        self, topics: Topics, *, key: Serde[K], value: Serde[V], **options: Unpack[SourceOptions[V]]
    ) -> Stream[K, V]: ...
    @overload
    def stream(
        self, topics: Topics, *, key: Serde[K], **options: Unpack[SourceOptions[V_co]]
    ) -> Stream[K, V_co]: ...
    @overload
    def stream(
        self, topics: Topics, *, value: Serde[V], **options: Unpack[SourceOptions[V]]
    ) -> Stream[K_co, V]: ...
    @overload
    def stream(
        self, topics: Topics, **options: Unpack[SourceOptions[V_co]]
    ) -> Stream[K_co, V_co]: ...
    def stream(
        self,
        topics: Topics,
        *,
        key: Serde | None = None,
        value: Serde | None = None,
        timestamp: UserFunction | None = None,
        offset_reset: Literal["earliest", "latest"] = "earliest",
        max_future: Duration | None = None,
        name: str | None = None,
        on_error: p.OnError | None = None,
    ) -> Stream:
        """Reads one topic, several, or all that match a pattern, as a stream.

        `timestamp`: a function of the value that gives epoch ms; by default the record's own time.
        Records further than `max_future` ahead of the wall clock count as errors.
        """
        operator = f"stream({topics!r})"
        if offset_reset not in RESETS:
            raise TopologyError(f"{operator}: offset_reset is earliest or latest: {offset_reset!r}")
        pattern = topics if isinstance(topics, re.Pattern) else None
        if pattern is not None and not isinstance(pattern.pattern, str):
            raise TopologyError(f"{operator}: expected a pattern of text, got one of bytes")
        listed = () if pattern else topics_of(topics, operator)
        value_serde = serde_or_none(value, "value=", operator) or self._value or bytes_()
        source = p.Source(
            name=self._draft.name(_source_name(listed, pattern), p.Source, None, name),
            on_error=self._draft.policy(on_error, operator),
            topics=listed,
            pattern=pattern,
            key=serde_or_none(key, "key=", operator) or self._key or bytes_(),
            value=value_serde,
            timestamp=None if timestamp is None else _timestamp(timestamp, operator, value_serde),
            offset_reset=offset_reset,
            max_future_ms=None if max_future is None else not_negative(max_future, operator),
        )
        return Stream(self._draft, self._draft.read(source, operator))

    @overload
    def table(
        self, topic: str, *, key: Serde[K], value: Serde[V], **options: Unpack[TableSourceOptions]
    ) -> Table[K, V]: ...
    @overload
    def table(
        self, topic: str, *, key: Serde[K], **options: Unpack[TableSourceOptions]
    ) -> Table[K, V_co]: ...
    @overload
    def table(
        self, topic: str, *, value: Serde[V], **options: Unpack[TableSourceOptions]
    ) -> Table[K_co, V]: ...
    @overload
    def table(self, topic: str, **options: Unpack[TableSourceOptions]) -> Table[K_co, V_co]: ...
    def table(
        self,
        topic: str,
        *,
        key: Serde | None = None,
        value: Serde | None = None,
        name: str | None = None,
        history: Duration | None = None,
        retention: Duration | None = None,
        on_error: p.OnError | None = None,
    ) -> Table:
        """A topic as a table: the latest value per key; a null value deletes. Named: a store.

        With a `retention` rows leave whose last update is longer ago than that in stream time.
        """
        operator = f"table({topic!r})"
        if retention is not None:
            options: dict[str, Any] = {"key": key, "value": value, "on_error": on_error}
            return self.stream(topic, **options).to_table(
                name=name, history=history, retention=retention
            )
        source = p.TableSource(
            name=self._draft.name(topic, p.TableSource, None, name),
            on_error=self._draft.policy(on_error, operator),
            topics=topics_of(topic, operator),
            key=serde_or_none(key, "key=", operator) or self._key or bytes_(),
            value=serde_or_none(value, "value=", operator) or self._value or bytes_(),
            named=name is not None,
            history_ms=history_ms(history, operator),
        )
        return Table(self._draft, self._draft.read(source, operator))

    @overload
    def global_table(
        self, topic: str, *, key: Serde[K], value: Serde[V], **options: Unpack[GlobalOptions]
    ) -> GlobalTable[K, V]: ...
    @overload
    def global_table(
        self, topic: str, *, key: Serde[K], **options: Unpack[GlobalOptions]
    ) -> GlobalTable[K, V_co]: ...
    @overload
    def global_table(
        self, topic: str, *, value: Serde[V], **options: Unpack[GlobalOptions]
    ) -> GlobalTable[K_co, V]: ...
    @overload
    def global_table(
        self, topic: str, **options: Unpack[GlobalOptions]
    ) -> GlobalTable[K_co, V_co]: ...
    def global_table(
        self,
        topic: str,
        *,
        key: Serde | None = None,
        value: Serde | None = None,
        name: str | None = None,
        on_error: p.OnError | None = None,
    ) -> GlobalTable:
        """A topic as a table with a whole copy on every worker, read before any task runs.

        Streams can join it by any key. Use it for small tables, and `table` for large ones.
        """
        operator = f"global_table({topic!r})"
        if on_error == "dlq":
            raise TopologyError(
                f'{operator}: on_error="dlq" would write a letter for each worker and each start; '
                '"skip" leaves out what cannot be read'
            )
        source = p.GlobalSource(
            name=self._draft.name(topic, p.GlobalSource, None, name),
            on_error=self._draft.policy(on_error, operator),
            topics=topics_of(topic, operator),
            key=serde_or_none(key, "key=", operator) or self._key or bytes_(),
            value=serde_or_none(value, "value=", operator) or self._value or bytes_(),
        )
        read = self._draft.read(source, operator)
        assert isinstance(read, p.GlobalSource), "sources of two kinds are never one"
        return GlobalTable(self._draft, read)


def _timestamp(given: UserFunction, operator: str, serde: Serde) -> Function:
    """A function of the value, or an expression of it and the record's own timestamp."""
    shape = Shape(type_of_serde(serde))
    return function_of(given, operator, shape=shape, reads=(VALUE, TIMESTAMP), gives=INT64)


def _source_name(topics: Sequence[str], pattern: re.Pattern[str] | None) -> str:
    """A source is called by its first topic, or by a hash of its pattern."""
    return topics[0] if pattern is None else f"pattern-{crc32(pattern.pattern.encode()):08x}"
