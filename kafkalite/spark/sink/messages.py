"""What a task of the sink tells the driver.                                               [P]

Owns   nothing.
Fails  never.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage


@dataclass(frozen=True, slots=True)
class Staged:
    """The rows of one task: a file, or nothing where it had none."""

    path: str
    rows: int


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What a task did: the rows that it sent or staged, and the query that it belongs to."""

    staged: Staged
    query: str
