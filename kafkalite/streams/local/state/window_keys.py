"""What stores of sessions and of sliding windows share: their keys, their note, their view.  [P]

    changelog record    key    the key's bytes, end, start of a session; key, start of a sliding
                               window: as SessionWindowedSerializer and TimeWindowedSerializer

A window whose bounds move is deleted under its old key and put under its new one, at most once a
commit. The note of the operator stands among the rows under NOTE_KEY, shorter than any key.

Owns   how windows stand in the changelog.
Never  decodes a key unless somebody looks at it.
Source Kafka Streams' SessionStore, SessionKeySchema, WindowStore.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from kafkalite.core.types import Columns, Windowed
from kafkalite.errors import TopologyError
from kafkalite.serde.serde import Codec
from kafkalite.serde.windowed import SESSION, TIME
from kafkalite.streams.local.sharing import copies
from kafkalite.streams.local.state.backend import Backend
from kafkalite.streams.local.state.forms import NO_WINDOW, NOTE_KEY
from kafkalite.streams.local.state.store import Layout, StateStore, StoreView
from kafkalite.streams.windows import SpanWindow

PAGE_KEYS: Final = 100  # whose windows are looked up at a time

Bounds = tuple[int, int]


class Known(NamedTuple):
    """A window that is there; `window` is what its store calls it."""

    key: bytes
    start: int
    end: int
    window: Any


class WindowKeyStore(StateStore):
    """One store of one task, whose rows have a key and a window's bounds."""

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
        self._length = spans.key_size_ms
        self._has_loaded = True  # whether rows were loaded of which no window is there yet
        self._row_note: bytes | None = None
        super().__init__(name, changelog_topic, layout, None, key_codec, value_codec, backend)

    def place(self, key: bytes, start: int, end: int) -> bytes:
        """The key of a row in topics."""
        return key + (SESSION.pack(end, start) if self._length is None else TIME.pack(start))

    # Restoring

    @property
    def note_key(self) -> bytes:
        """The key under which the changelog has the note."""
        return NOTE_KEY

    @property
    def note(self) -> bytes | None:
        """What the operator wants to find again after a restart besides rows."""
        if self._row_note is None:
            found = self.kept.take(NO_WINDOW, [NOTE_KEY])
            self._row_note = found.values[0] if found.keys else None
        return self._row_note

    @note.setter
    def note(self, note: bytes) -> None:
        if note != self.note:
            self._row_note, self._is_note_logged = note, False

    def restore(self, columns: Columns) -> None:
        """Takes rows back as the changelog tells; the later record of a key replaces the earlier.

        SerdeError, with the record's index, for one that is no row of this store; a few of each
        batch are looked at.
        """
        if not len(columns):
            return
        self._check_rows(columns)
        self.kept.load(columns)
        self._row_note, self._has_loaded = None, True
        self._unsettle(columns.keys)

    def settle(self) -> None:
        """What a restore has left gets windows, whose rows are bytes until they are wanted."""
        self.kept.settle()
        if self._has_loaded:
            self._has_loaded = False
            places = self.kept.keys_between(b"", None)
            self._settle([place for place in places if place != NOTE_KEY])

    @abstractmethod
    def _unsettle(self, places: Sequence[bytes]) -> None:
        """Lets go of windows that the changelog tells of again, by their keys in topics."""

    @abstractmethod
    def _settle(self, places: Sequence[bytes]) -> None:
        """Takes in windows whose rows are kept as bytes alone; some are there. SerdeError for
        a key that has no window."""

    def _log_note(self, keys: list[bytes], values: list[bytes | None], stamps: list[int]) -> None:
        """One more record for the changelog, if the note has changed."""
        if not self._is_note_logged:
            self._is_note_logged = True
            keys.append(NOTE_KEY)
            values.append(self._row_note)
            stamps.append(max(0, self.newest))

    # For users

    def view(self) -> SpanView:
        """The store as users look into it."""
        return SpanView(self)

    @abstractmethod
    def keys_there(self) -> Iterable[bytes]:
        """The keys that have windows."""

    @abstractmethod
    def windows_of(self, keys: Iterable[bytes]) -> list[Known]:
        """The windows of some keys."""

    @abstractmethod
    def rows_of(self, windows: Sequence[Any]) -> Sequence[Any]:
        """The rows of some windows."""

    def windowed_keys(self, keys: Sequence[bytes], bounds: Sequence[Bounds]) -> Sequence[Any]:
        """The keys of windows as users see them."""
        pairs = zip(self.inner_keys(keys), bounds, strict=True)
        return [Windowed(key, start, end) for key, (start, end) in pairs]

    @property
    def is_of_sessions(self) -> bool:
        """Whether windows are as long as their records make them."""
        return self._length is None


class SpanView(StoreView):
    """A store of sessions or sliding windows to look into: decoded keys and rows, in order."""

    def __init__(self, store: WindowKeyStore) -> None:
        self._spans = store
        super().__init__(store)

    def get(self, key: Any) -> Any:
        """The row of a `Windowed(key, start, end)`, None when there is none."""
        if not isinstance(key, Windowed):
            name = self._spans.name
            raise TopologyError(f"store {name!r}: expected a Windowed key, got {key!r}")
        its = self._spans.windows_of([self._spans.key_bytes(key.key)])
        found = [each for each in its if (each.start, each.end) == (key.start, key.end)]
        return next((row for _, row in self._shown(found)), None)

    def all(self) -> Iterator[tuple[Any, Any]]:
        """Every (key, row)."""
        return self.range()

    def range(self, start: Any = None, end: Any = None) -> Iterator[tuple[Any, Any]]:
        """The (key, row) pairs with keys from `start` to `end`, both included; None: no bound."""
        low = b"" if start is None else self._spans.key_bytes(start)
        high = None if end is None else self._spans.key_bytes(end)
        there = self._spans.keys_there()
        keys = sorted(k for k in there if k >= low and (high is None or k <= high))
        pages = (keys[first : first + PAGE_KEYS] for first in range(0, len(keys), PAGE_KEYS))
        return chain.from_iterable(self._shown(self._spans.windows_of(page)) for page in pages)

    def fetch(self, key: Any, start: int, end: int) -> Iterator[tuple[Any, Any]]:
        """The (key, row) pairs of a key's sessions that overlap [start, end], or of its sliding
        windows that start in it."""
        its = self._spans.windows_of([self._spans.key_bytes(key)])
        is_of_sessions = self._spans.is_of_sessions
        return self._shown(
            [s for s in its if s.start <= end and (s.end if is_of_sessions else s.start) >= start]
        )

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self._spans.windows_of(self._spans.keys_there()))

    def _shown(self, known: list[Known]) -> Iterator[tuple[Any, Any]]:
        bounds = [(each.start, each.end) for each in known]
        keys = self._spans.windowed_keys([each.key for each in known], bounds)
        rows = self._spans.rows_of([each.window for each in known])
        return iter(list(zip(keys, copies(rows), strict=True)))
