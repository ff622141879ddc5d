"""One record, as a user function sees it and as the test driver reads it.                [P]"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic

from kafkalite.core.generics import K_co, V_co
from kafkalite.core.types import Headers


@dataclass(frozen=True, slots=True)
class Record(Generic[K_co, V_co]):
    """A record with decoded key and value.

    `topic`, `partition` and `offset` tell where it was read from; they are None for a record that
    was made here, such as an update of a table.
    """

    key: K_co
    value: V_co
    timestamp: int  # epoch ms
    headers: Headers = ()
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None

    def replace(self, **changes: Any) -> Record:
        """A copy with some fields changed: `record.replace(value=…)`."""
        fields: dict[str, Any] = {
            "key": self.key,
            "value": self.value,
            "timestamp": self.timestamp,
            "headers": self.headers,
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
        }
        return Record(**(fields | changes))
