"""The store of sessions and sliding windows that are packed.                                 [P]

Windows and rows are in a table in native code. Rows may be kept as bytes alone: after a restart,
and on disk once memory is scarce; bounds never are. They stand in the changelog as in the store of
the twin, state/spans.py.

Owns   the way of rows between the table, the changelog and bytes.
Source Kafka Streams' SessionStore, SessionKeySchema, WindowStore.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kafkalite.core.types import Columns, Windowed
from kafkalite.errors import ProcessingError, SerdeError
from kafkalite.serde.serde import Codec
from kafkalite.streams.local.operators.folding import kinds_of
from kafkalite.streams.local.spans.native import SpanLog, SpanTable
from kafkalite.streams.local.state.backend import Backend
from kafkalite.streams.local.state.forms import NO_WINDOW, NOTE_KEY
from kafkalite.streams.local.state.store import OBJECT_BYTES, PARTIAL_BYTES, Bucket, Layout
from kafkalite.streams.local.state.window_keys import Known, WindowKeyStore
from kafkalite.streams.windows import SpanWindow


class PackedStore(WindowKeyStore):
    """One store of one task."""

    def __init__(
        self,
        name: str,
        changelog_topic: str,
        layout: Layout,
        spans: SpanWindow,
        key_codec: Codec,
        value_codec: Codec,
        backend: Backend | None = None,
    ) -> None:
        kinds, length = kinds_of(layout.aggregates), spans.key_size_ms
        assert kinds is not None, f"store {name!r}: not all aggregates are known in native code"
        self.table = SpanTable(kinds, length is None, length or 0, layout.deletes)
        super().__init__(name, changelog_topic, layout, spans, key_codec, value_codec, backend)

    # Rows that are kept as bytes alone

    def warm(self, keys: Iterable[bytes]) -> None:
        """Reads the rows of all windows of `keys` that are kept as bytes alone."""
        if self.table.cold:
            self.warm_windows(self.table.all_of(dict.fromkeys(keys)))

    def warm_windows(self, windows: Sequence[int]) -> None:
        """Reads the rows of windows that are kept as bytes alone."""
        if not (self.table.cold and (wanted := self.table.cold_ones(windows))):
            return
        found = self.kept.take(NO_WINDOW, list(wanted))
        if not found.keys:
            return
        its = [wanted[key] for key in found.keys]
        scratch = Bucket(NO_WINDOW, tuple({} for _ in self.layout.aggregates))
        try:
            stored = self._value_codec.deserialize(self.changelog_topic, found.values)
            self.layout.load(scratch, its, stored)
        except (SerdeError, LookupError, TypeError, ValueError) as error:
            raise ProcessingError(
                f"store {self.name!r}: a row of {self.changelog_topic!r} cannot be read: {error!r}"
                "; rows of another shape need another name"
            ) from error
        self.table.load(its, list(found.stamps), scratch.partials)
        for window, headers in zip(its, found.headers or (), strict=False):
            if headers:
                self.table.headers[window] = headers
        self._measure(found.keys, found.values)

    def sweep(self) -> None:
        """Forgets the bytes of rows that went while they were kept as bytes alone."""
        if (gone := self.table.take_orphans()) and not self.kept.is_durable:
            self.kept.take(NO_WINDOW, gone)

    # Restoring

    def _unsettle(self, places: Sequence[bytes]) -> None:
        for place in places if len(self.table) else ():
            if place != NOTE_KEY:
                self.table.unsettle(place)

    def _settle(self, places: Sequence[bytes]) -> None:
        try:
            self.table.settle(places)
        except ValueError as error:
            raise SerdeError(f"ValueError: {error}") from None

    # The changelog

    def changelog(self) -> Columns | None:
        """What changed since the last call; None for nothing."""
        self.sweep()
        note = None if self._is_note_logged else self._row_note
        self._is_note_logged = True
        log = self.table.unlogged(NOTE_KEY, note, max(0, self.newest), self._packed)
        if not len(log):
            return None
        places = log.places()
        values: Sequence[bytes | None] = log.packed()
        if self.layout.is_plain:
            values = self._values(log, note)
        columns = Columns(places, values, log.stamps(), None, log.headers)
        if self.kept.is_durable:
            self.kept.write(columns, None)
        self._coded_rows += len(log)
        self._coded_bytes += places.bytes_total
        return columns

    def _packed(self, value: Any) -> bytes:
        """An object that is no number of the machine, inside a row."""
        (data,) = self._value_codec.serialize(self.changelog_topic, [value])
        assert data is not None
        return data

    def _values(self, log: SpanLog, note: bytes | None) -> Sequence[bytes | None]:
        """Rows by the store's serde, behind the note; null where a window is gone."""
        rows = self.layout.named(log.results) if log.rows > (note is not None) else []
        values = self._value_codec.serialize(self.changelog_topic, rows)
        told: Sequence[bytes | None] = values if note is None else [note, *values]
        return log.values(told)

    # Memory

    @property
    def object_bytes(self) -> int:
        """About how many bytes rows take that can be read again."""
        return (len(self.table) - self.table.cold) * self._row_bytes

    @property
    def _row_bytes(self) -> int:
        coded = self._coded_bytes // self._coded_rows if self._coded_rows else 0
        return PARTIAL_BYTES * len(self.layout.aggregates) + OBJECT_BYTES * coded

    def shrink(self, bytes_max: int) -> None:
        """Lets go of rows that are on disk as they are here until the rest fits. Rows that the
        changelog or somebody below has yet to hear of stay, and so do all bounds."""
        assert self.kept.is_durable, f"store {self.name!r} is nowhere but in memory"
        excess = (self.object_bytes - bytes_max) // self._row_bytes
        if excess > 0:
            self.table.cool(excess)

    # For users

    def keys_there(self) -> Iterable[bytes]:
        """The keys that have windows."""
        return self.table.every_key()

    def windows_of(self, keys: Iterable[bytes]) -> list[Known]:
        """The windows of some keys."""
        return list(map(Known._make, self.table.described(self.table.all_of(keys))))

    def rows_of(self, windows: Sequence[Any]) -> Sequence[Any]:
        """The rows of some windows."""
        self.warm_windows(windows)
        return self.layout.named(self.table.rows(windows).results)

    # On their way

    def rows(self, log: SpanLog) -> Sequence[Any]:
        """The rows of a log, None where a window is gone."""
        return log.values(self.layout.named(log.results) if log.rows else [])

    def log_keys(self, log: SpanLog) -> Sequence[Windowed[Any]]:
        """The keys of a log as users see them."""
        return self.windowed_keys(log.keys, log.bounds())
