"""The keyword arguments that operators with a user function take.                         [P]

Fails  with TypeError for a keyword argument that an operator does not have.
"""

from __future__ import annotations

from typing import TypedDict

from kafkalite.streams import plan as p


class TableOptions(TypedDict, total=False):
    """What every operator on tables with a user function takes."""

    name: str | None
    with_key: bool
    on_error: p.OnError | None


class Options(TableOptions, total=False):
    """What every operator on streams with a user function takes."""

    with_record: bool


def check_options(operator: str, options: object, known: type) -> None:
    """TypeError for a keyword argument that the operator does not have."""
    assert isinstance(options, dict)
    for name in options.keys() - known.__annotations__.keys():
        raise TypeError(f"{operator}: unexpected keyword argument {name!r}")


def is_row(value: object) -> bool:
    """Whether a table has a row where it has this value."""
    return value is not None


def of_pairs(options: Options) -> Options:
    """Functions of pairs always get the key, or the whole record."""
    return {**options, "with_key": not options.get("with_record", False)}
