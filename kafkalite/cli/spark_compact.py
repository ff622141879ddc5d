"""`kafkalite-spark compact`: few large files in the place of many small ones.              [IO]

Fails  with one line and exit code 1: a table that does not exist, or that another process writes.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kafkalite.cli.options import AsJson
from kafkalite.cli.output import emit, print_json
from kafkalite.cli.places import parse_duration_ms
from kafkalite.cli.spark_progress import progress
from kafkalite.errors import ConfigError

if TYPE_CHECKING:
    from kafkalite.warehouse.compaction import Compacted

KEEP: Final = "7d"
MERGE_ABOVE: Final = 64

Keep = Annotated[
    str, typer.Option(help="How long files stay that merges have replaced or crashes have left.")
]
MergeAbove = Annotated[
    int,
    typer.Option(help="Merge small files after a load that could save more (0: never).", min=0),
]


def a_folder(warehouse: Path) -> Path:
    """ConfigError for what has the form of a URL, and would become a folder of such a name here."""
    if found := re.match(r"(\w[\w+.-]+):/", str(warehouse)):
        raise ConfigError(
            f"--warehouse: {found[1]}:// is not supported: give a folder that is mounted here"
        )
    return warehouse


Warehouse = Annotated[Path, typer.Option(help="The folder of the tables.", callback=a_folder)]
Catalog = Annotated[
    str | None,
    typer.Option(help="Iceberg's catalog, by its name in pyiceberg's configuration."),
]
Table = Annotated[
    list[str], typer.Argument(help="Tables of the warehouse, or their topics.", metavar="TABLE")
]
TargetSize = Annotated[
    int, typer.Option(help="Megabytes of a file; smaller ones than half are merged.", min=1)
]


def compact(
    tables: Table,
    warehouse: Warehouse = Path("warehouse"),
    file_mb: TargetSize = 128,
    keep: Keep = KEEP,
    catalog: Catalog = None,
    json: AsJson = False,
) -> None:
    """Merge the small files of tables into large ones.

    Rows are sorted by time in them. Readers see the files before or those after, never a part.
    Rows and offsets do not change. Files that were replaced go after a time.
    """
    keep_ms = parse_duration_ms(keep, "--keep")
    places = [_place(warehouse.resolve(), name) for name in tables]
    found: list[dict[str, Any]] = []
    for place in places:
        done = _compacted(place, keep_ms, file_mb << 20, catalog)
        found.append({"table": str(place), **_summary(done)})
        if not json:
            emit(f"{place.name}: {_what(done)}")
    if json:
        print_json({"tables": found})


def _place(warehouse: Path, name: str) -> Path:
    """The folder of a table, which has its name or its topic's."""
    from kafkalite.warehouse.tables import TopicLoad, format_of

    for table in (name, TopicLoad(name).table):
        if format_of(warehouse / table) is not None:
            return warehouse / table
    raise ConfigError(f"{warehouse}: there is no table {name}")


def _compacted(
    place: Path, keep_ms: int, file_bytes: int, catalog: str | None, merge_above: int | None = None
) -> Compacted:
    """Compacts a table; with `merge_above` only if it has more small files than that."""
    from kafkalite.warehouse.compaction import Compacted, Compaction
    from kafkalite.warehouse.rewritable import rewritable

    now_ms = int(time.time() * 1000)
    work = Compaction(
        rewritable(place, now_ms, catalog), f"{now_ms}-{os.getpid()}", now_ms, keep_ms, file_bytes
    )
    if merge_above is not None:
        work.is_lazy = True
        if work.excess() <= merge_above:
            return Compacted()
    with progress(f"{place.name}: merge") as work.progress:
        return work.run()


def merge_after_loads(
    tables: Iterable[dict[str, Any]],
    merge_above: int,
    keep: str,
    catalog: str | None,
    tell: Callable[[str], None],
) -> None:
    """Merges the small files of tables that have got new ones, where there are many, and says so.
    A table that another process holds by then is left to the next load.
    """
    from kafkalite.warehouse.compaction import Compacted
    from kafkalite.warehouse.splitting import FILE_BYTES
    from kafkalite.warehouse.workspace import TableHeld

    keep_ms = parse_duration_ms(keep, "--keep")
    for table in tables:
        done = Compacted()
        if merge_above and table["files"]:
            place = Path(table["table"])
            try:
                done = _compacted(place, keep_ms, FILE_BYTES, catalog, merge_above)
            except TableHeld as error:
                tell(f"{place.name}: small files are not merged: {error}")
        if done.merged:
            tell(f"{place.name}: {_what(done)}")
        table |= _summary(done)


def _summary(done: Compacted) -> dict[str, int]:
    return {"merged_files": done.merged, "made_files": done.made, "removed_files": done.removed}


def _what(done: Compacted) -> str:
    said = "no small files to merge"
    if done.merged:
        said = f"{done.merged:,} files merged into {done.made:,}"
    if done.removed:
        said += f", {done.removed:,} old files and versions removed"
    if done.is_kept:
        said += "; old files stay until an unfinished load has ended"
    return said
