"""What all nodes of a plan have in common: parents, ports, a policy for errors.              [P]

Owns   the base of the plan's vocabulary; `plan` has the nodes themselves, and others import that.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Literal

OnError = Literal["fail", "skip", "dlq"]


class Port(Enum):
    """An output of a node, in the order in which one record leaves by several."""

    LATE = "records that it dropped as late"
    UNFINISHED = "sequences that were not completed in time"
    RECORDS = "the records or rows that it makes"
    FINAL = "the rows of windows that are closed"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Node:
    """A step of a topology. Nodes are compared by identity; names are unique within a plan."""

    reads: ClassVar[Port] = Port.RECORDS  # which output of its parents
    changes_key: ClassVar[bool] = False  # equal keys may be in several partitions below
    changes_value: ClassVar[bool] = False  # nothing is known of the serde of values below
    pushes_often: ClassVar[bool] = False  # several batches for one that came, the later ones last
    gathers: ClassVar[bool] = False  # takes the records of several inputs better together
    joins: ClassVar[bool] = False  # equal keys of all its parents come to one task
    begins_runs: ClassVar[bool] = False  # what leaves it comes later than the run that led to it

    name: str
    parents: tuple[Node, ...] = ()
    on_error: OnError | None = None  # None: as the application says
    made_at: str = ""  # the user's file and line, for errors

    @property
    def takes_null_keys(self) -> bool:
        """Whether it makes something of a record without a key, where its input is repartitioned:
        left joins do."""
        return False

    @property
    def parent(self) -> Node:
        """The only parent."""
        (parent,) = self.parents
        return parent


class Table:
    """Mixed into the nodes whose output is a table: of a key's records the last one counts."""

    __slots__ = ()
