"""What becomes of a record on which a user function or a serde fails.                     [P]

    fail    ProcessingError; the task is over, nothing of it is committed
    skip    the record is left out and counted in dropped-records-total
    dlq     the same, and its bytes go to the dead letter topic with the error in headers; without
            key and value where they do not fit

Owns   the error policy, the wording of ProcessingError and the headers of dead letters.
Never  calls a user function twice for a record.
Source KIP-1033, KIP-1034 (header names).
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import compress, islice
from typing import Any, Final

from kafkalite.core.columns import negated
from kafkalite.core.types import Columns, Headers
from kafkalite.errors import ProcessingError, SerdeError
from kafkalite.streams import plan as p
from kafkalite.streams.blame import line_of
from kafkalite.streams.expressions.objects import Compiled
from kafkalite.streams.functions import Function
from kafkalite.streams.local.batch import Batch, Output, Place
from kafkalite.streams.local.drops import Drops, Reason
from kafkalite.streams.local.sizes import Limits, record_bytes

DROPPED: Final = "dropped-records-total"
FAILED: Final = "failed-records-total"
DEAD_LETTERS: Final = "dead-letter-records-total"
UNKNOWN: Final = object()  # a value that is not at hand
FIELDS_MAX: Final = 20  # listed in an error
GO_ON: Final = 'To go on without such records: on_error="skip" or "dlq"'
HEADER: Final = "__streams.errors."
STORY_HEADERS: Final = 7  # of error_headers
HEADERS_MAX: Final = 10  # of the record's own in a letter that is cut
HEADER_BYTES_MAX: Final = 1_000  # of each then


Applied = Callable[..., Any] | Compiled  # what is applied to columns, record by record


class Failures:
    """Decides over the failures of one task's operators."""

    def __init__(
        self,
        plan: p.Plan,
        partition: int,
        metrics: Counter[str],
        outputs: list[Output],
        drops: Drops,
        limits: Limits,
        value_of: Callable[[p.Node, Place], object],
    ) -> None:
        self._value_of = value_of
        self._limits = limits
        self._drops = drops
        self._plan = plan
        self._partition = partition
        self._metrics = metrics
        self._outputs = outputs

    def policy(self, node: p.Node) -> p.OnError:
        """The operator's policy, or else the application's."""
        return node.on_error or self._plan.on_error

    def handle(
        self,
        node: p.Node,
        error: Exception,
        place: Place | None,
        what: str = "a made record",
        value: object = UNKNOWN,
    ) -> None:
        """Raises ProcessingError, or returns when the record is to be left out.

        `value` is what the operator was given, where that is known.
        """
        policy = self.policy(node)
        if policy == "fail":
            where = what if place is None else str(place)
            why = reason(error, node) + about_value(error, value)
            if line := line_of(error) or node.made_at:
                why += f" ({line})"
            raise ProcessingError(f"{node.name!r}: {where}: {why}. {GO_ON}") from error
        self._metrics[DROPPED] += 1
        self._metrics[FAILED] += 1
        has_letter = policy == "dlq" and place is not None
        self._drops.add(Reason.DLQ if has_letter else Reason.SKIP, node.name)
        if policy == "dlq" and place is not None:
            self._metrics[DEAD_LETTERS] += 1
            self._outputs.append(self._dead_letter(node, error, place))

    def _dead_letter(self, node: p.Node, error: Exception, place: Place) -> Output:
        columns, i = place.columns, place.at
        headers = () if columns.headers is None else columns.headers[i]
        topic = self._plan.dead_letter_topic
        assert topic is not None
        key, value = columns.keys[i], columns.values[i]
        headers = (*headers, *error_headers(error, node, place))
        limit = self._limits.get(topic)
        if limit is not None and record_bytes(key, value, headers) > limit:
            # The place of the record says where its value is.
            key = value = None
            headers = tuple((name, data and data[:HEADER_BYTES_MAX]) for name, data in headers)
            headers = (*headers[:-STORY_HEADERS][:HEADERS_MAX], *headers[-STORY_HEADERS:])
        letter = Columns([key], [value], [columns.timestamps[i]], None, [headers])
        return Output(topic, letter, None, node.name)

    def call(
        self,
        node: p.Node,
        function: Applied,
        batch: Batch,
        columns: Sequence[Sequence[Any]],
        indexes: Sequence[int] | None = None,
        *,
        once_more: bool = False,
    ) -> tuple[list[Any], list[int]]:
        """`function` over columns: the results, and the indexes of records that it failed on.

        `indexes` tells which records of `batch` the columns hold, all of them when None. With
        `once_more` the function was called with these before: what it fails on is not skipped,
        counted or written as a dead letter a second time.
        """
        failed: list[int] = []
        is_known = once_more and self.policy(node) != "fail"

        def fail(at: int, error: Exception) -> None:
            failed.append(at)
            if is_known:
                return
            self.at(node, error, batch, at if indexes is None else indexes[at])

        return attempt(function, columns, fail), failed

    def apply(
        self,
        node: p.Node,
        function: Applied,
        batch: Batch,
        columns: Sequence[Sequence[Any]],
    ) -> tuple[Batch, list[Any]]:
        """`function` over columns of `batch`: the records that did not fail, and their results."""
        results, failed = self.call(node, function, batch, columns)
        return self.without(batch, results, failed) if failed else (batch, results)

    def at(self, node: p.Node, error: Exception, batch: Batch, index: int) -> None:
        """A failure of record `index` of `batch`."""
        key = batch.raw_keys[index] if batch.raw_keys is not None else None
        (place,) = batch.origin.places([index])
        value: object = UNKNOWN
        if self.policy(node) == "fail":
            if place is not None:
                value = self._value_of(node, place)
            if value is UNKNOWN and batch.values is not None:
                value = batch.values[index]
        self.handle(node, error, place, f"an update of key {key!r}", value)

    def where(
        self, node: p.Node, batch: Batch, verdicts: Sequence[Any], *, negate: bool = False
    ) -> Batch:
        """The records whose verdict is true, or with `negate` is not.

        A verdict that is neither is a failure of whoever gave it.
        """
        try:
            return batch.where(negated(verdicts) if negate else verdicts)
        except Exception:
            batch, verdicts = self.apply(node, bool, batch, [verdicts])
            return batch.where([verdict is not negate for verdict in verdicts])

    def split(self, node: p.Node, batch: Batch, verdicts: Sequence[Any]) -> tuple[Batch, Batch]:
        """As `where`: the records whose verdict is true, and the others."""
        try:
            against = negated(verdicts)
        except Exception:
            batch, verdicts = self.apply(node, bool, batch, [verdicts])
            against = negated(verdicts)
        return batch.where(verdicts), batch.where(against)

    @staticmethod
    def without(batch: Batch, results: list[Any], failed: Sequence[int]) -> tuple[Batch, list[Any]]:
        """`batch` and `results` without the records that failed."""
        keep = bytearray(b"\x01") * len(results)
        for index in failed:
            keep[index] = 0
        return batch.where(keep), list(compress(results, keep))


def attempt(
    function: Applied,
    columns: Sequence[Sequence[Any]],
    failed: Callable[[int, Exception], None],
) -> list[Any]:
    """`function` over columns, called once for each record; None where it failed."""
    results: list[Any] = []
    count = len(columns[0])
    go_on: Callable[[], None]  # behind the record that failed
    if isinstance(function, Compiled):
        go_on = partial(function.extend, results, *map(iter, columns))
    else:
        go_on = partial(results.extend, map(function, *columns))
    while True:
        try:
            # What came before an exception is kept, so the results' length tells the record.
            go_on()
            if len(results) == count:
                return results
            raise RuntimeError("the function raised StopIteration")
        except Exception as error:
            failed(len(results), error)
            results.append(None)


def convert(
    convert: Callable[[str, Sequence[Any]], Sequence[Any]],
    topic: str,
    column: Sequence[Any],
    failed: Callable[[int, Exception], None],
) -> tuple[Sequence[Any], list[int]]:
    """A codec over a column: the results, None where it failed, and where that was."""
    try:
        return convert(topic, column), []
    except SerdeError:
        pass  # once more, from failure to failure
    results: list[Any] = []
    bad: list[int] = []
    while True:
        rest = column[len(results) :] if results else column
        try:
            done = convert(topic, rest)
            return (results + list(done) if results else done), bad
        except SerdeError as error:
            if error.index is None:
                raise
            index = len(results) + error.index
            failed(index, error)
            results += convert(topic, rest[: error.index])
            results.append(None)
            bad.append(index)


def reason(error: Exception, node: p.Node) -> str:
    """An error in a few words; a missing field is called that."""
    if isinstance(error, KeyError) and error.args in _fields(node):
        return f"the value has no field {error}"
    if isinstance(error, SerdeError):
        return error.words
    return f"{type(error).__name__}: {error}"


def about_value(error: Exception, value: object) -> str:
    """What there is in the place of what the operator looked for."""
    if not isinstance(error, KeyError | TypeError | AttributeError | IndexError):
        return ""
    if isinstance(value, bytes | bytearray):
        return "; the value is bytes, because no serde reads it: value=json(), for one, does"
    if isinstance(error, KeyError) and isinstance(value, Mapping) and error.args:
        names = [repr(name) for name in islice(value, FIELDS_MAX)]
        more = ", …" if len(value) > FIELDS_MAX else ""
        return f"; it has {', '.join(names) or 'no fields'}{more}"
    return ""


def _fields(node: p.Node) -> list[tuple[str]]:
    """The fields by which `node` takes values apart, as a KeyError would hold them."""
    functions = [getattr(node, name, None) for name in ("function", "select", "timestamp")]
    functions += getattr(node, "predicates", ())
    if isinstance(node, p.Aggregate):
        functions += (aggregate.argument for aggregate in node.aggregates)
    return [(name,) for f in functions if isinstance(f, Function) for name in f.fields]


def error_headers(error: Exception, node: p.Node, place: Place) -> Headers:
    """The headers that a dead letter tells its story with."""
    story = {
        "exception": type(error).__name__,
        "message": reason(error, node),
        "stacktrace": "".join(traceback.format_exception(error)),
        "operator": node.name,
        "topic": place.topic,
        "partition": str(place.partition),
        "offset": str(place.offset),
    }
    return tuple((HEADER + name, text.encode()) for name, text in story.items())
