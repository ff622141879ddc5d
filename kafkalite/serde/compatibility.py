"""May a subject take a new schema, given those that it has?                               [P]

    BACKWARD    a reader with the new schema can read data of the older one        (default)
    FORWARD     a reader with the older schema can read data of the new one
    FULL        both
    NONE        anything goes

`..._TRANSITIVE` looks at all older versions, the others at the last one alone.

Owns   the levels; what can be read is decided by schema resolution itself (`avro_resolve`), so a
       schema that passes here is one that readers resolve.
Fails  with SchemaError when the schemas are too much to compare; an empty list of complaints means
       yes.
Source Confluent Schema Registry, "Schema Evolution and Compatibility".
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from kafkalite.serde.avro_resolve import Labels, comparing, unreadable
from kafkalite.serde.avro_schema import Schema
from kafkalite.serde.work import Work

NEW_READS_OLD: Final = Labels(writer="the older schema", reader="the newer schema")
OLD_READS_NEW: Final = Labels(writer="the newer schema", reader="the older schema")


class Compatibility(Enum):
    """Confluent's seven levels: (the new reads the old, the old reads the new, all versions)."""

    NONE = (False, False, False)
    BACKWARD = (True, False, False)
    BACKWARD_TRANSITIVE = (True, False, True)
    FORWARD = (False, True, False)
    FORWARD_TRANSITIVE = (False, True, True)
    FULL = (True, True, False)
    FULL_TRANSITIVE = (True, True, True)

    @property
    def backward(self) -> bool:
        """Whether readers may be upgraded first."""
        return self.value[0]

    @property
    def forward(self) -> bool:
        """Whether writers may be upgraded first."""
        return self.value[1]

    @property
    def transitive(self) -> bool:
        """Whether all older versions count."""
        return self.value[2]


def complaints(
    level: Compatibility, new: Schema, older: Mapping[int, Schema], work: Work | None = None
) -> list[str]:
    """Why `new` may not follow the versions in `older`, latest first; empty when it may.

    `work` is for all of the versions together.
    """
    work = work or comparing("the schema with older versions")
    counted = sorted(older, reverse=True)
    if not level.transitive:
        counted = counted[:1]
    found: list[str] = []
    for version in counted:
        reasons: list[str] = []
        if level.backward:
            reasons += unreadable(older[version], new, NEW_READS_OLD, work)
        if level.forward:
            reasons += unreadable(new, older[version], OLD_READS_NEW, work)
        found += [f"version {version}: {reason}" for reason in dict.fromkeys(reasons)]
    return found
