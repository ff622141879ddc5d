"""What a worker says over HTTP: keys out of paths, rows and other things as JSON.           [P]

Values that JSON has no word for are text.

Fails  with Refused, which has a status, for a key that makes no sense.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from kafkalite.core.types import Windowed
from kafkalite.errors import KafkaliteError
from kafkalite.serde.primitives import BytesSerde, Float64Serde, Int64Serde, StringSerde
from kafkalite.streams.stores import Store

LIMIT: Final = 100
END_OF_TIME: Final = (1 << 63) - 1
WORKER: Final = "x-kafkalite-worker"


class Refused(KafkaliteError):
    """A request that is answered with a status of its own."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


def key_of(store: Store, text: str) -> Any:
    """The key that a text in a path stands for: as it is, a number, or JSON."""
    try:
        match store.key:
            case StringSerde():
                return text
            case BytesSerde():
                return text.encode()
            case Int64Serde():
                return int(text)
            case Float64Serde():
                return float(text)
        return orjson.loads(text)
    except ValueError:
        raise Refused(400, f"store {store.name!r}: {text!r} is no key of {store.key!r}") from None


def store_document(
    store: Store, *, is_windowed: bool, is_global: bool, tasks: Mapping[str, str | None]
) -> dict[str, Any]:
    """A store, and which worker has each of its tasks."""
    return {
        "name": store.name,
        "key": repr(store.key),
        "value": repr(store.value),
        "windows": is_windowed,
        "global": is_global,
        "tasks": tasks,
    }


def row_document(key: Any, value: Any) -> dict[str, Any]:
    """A row."""
    return {"key": key, "value": value}


def no_row(name: str, key: str) -> str:
    """The words for a row that there is not."""
    return f"store {name!r} has no row of {key!r}"


def encoded(document: Any) -> bytes:
    """JSON."""
    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_SUBCLASS
    return orjson.dumps(document, default=_plain, option=options)


def _plain(value: Any) -> Any:
    """What JSON has no word for."""
    if isinstance(value, Windowed):
        return {"key": value.key, "start": value.start, "end": value.end}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    return str(value)
