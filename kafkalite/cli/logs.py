"""`kafkalite log`: shows and checks the files of a data directory; no broker is needed.      [IO]

Reads Apache Kafka's data directories as well: the files are the same. The commands write nothing
and take no lock; of a running broker's directory they see what is on the disk at that moment.

Fails  with exit code 1, naming file and byte, if a file is damaged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from kafkalite.cli.options import AsJson, examples, program
from kafkalite.cli.output import counted, emit, print_json, print_table, say, to_json
from kafkalite.cli.progress import Progress

cli = program("Inspect a data directory; no broker is needed.")

FAULTS_MAX: Final = 1_000  # are shown; the rest is counted

Paths = Annotated[
    list[Path],
    typer.Argument(
        help="Data directories, partitions' directories or files: .log, .index, .timeindex, "
        ".txnindex, .snapshot, checkpoints."
    ),
]


@cli.command(
    epilog=examples(
        "kafkalite log dump data/orders-0",
        "kafkalite log dump data/orders-0/00000000000000000000.log --records",
        "kafkalite log dump data/__consumer_offsets-7 --records --json | jq .means",
    )
)
def dump(
    paths: Paths,
    records: Annotated[
        bool, typer.Option("--records", help="Also the records in each batch.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="A JSON document for each batch, record, entry.")
    ] = False,
) -> None:
    """Print the batches, entries and checkpoints in files."""
    from kafkalite.cli.log_dump import documents
    from kafkalite.cli.log_files import directories

    for path in paths:
        for directory in directories(path):
            for file in directory.files:
                if not json:
                    emit(f"{file.path}")
                for document in documents(directory, file, records=records):
                    if json:
                        emit(to_json({"file": str(file.path), **document}).decode())
                    else:
                        emit("  " + _line(document))


def _line(document: dict[str, Any]) -> str:
    """`batch position=0 base_offset=0 …`; a record stands further in."""
    told = [str(document["what"])]
    told += [
        f"{name}={_shown(value)}"
        for name, value in document.items()
        if name != "what" and value is not None
    ]
    return ("  " if document["what"] == "record" else "") + " ".join(told)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value).decode()


@cli.command(
    epilog=examples("kafkalite log verify data", "kafkalite log verify data/orders-0 --json")
)
def verify(paths: Paths, json: AsJson = False) -> None:
    """Check batches, records, indexes, snapshots and checkpoints.

    Exit code 1 if anything is wrong; each fault is named by file and byte. The table leaves out
    directories without segments, JSON has them all.
    """
    from kafkalite.cli.log_files import directories
    from kafkalite.cli.log_verify import Check

    checked = [Check(directory) for path in paths for directory in directories(path)]
    size = records = 0  # of the directories that are done
    with Progress(sum(check.log_bytes for check in checked), enabled=not json) as progress:
        for check in checked:
            check.run(progress.after(size, records))
            size, records = size + check.document()["bytes"], records + check.document()["records"]
    faults = [fault for check in checked for fault in check.faults]
    if json:
        print_json({"logs": [check.document() for check in checked], "faults": faults})
    else:
        columns = ["directory", "segments", "batches", "records", "bytes", "faults"]
        rows = [check.document() for check in checked]
        shown = [row for row in rows if row["segments"] or row["faults"] or len(rows) == 1]
        print_table(columns, [[row[c] for c in columns] for row in shown])
        for fault in faults[:FAULTS_MAX]:
            say(f"{fault['file']}: byte {fault['position']}: {fault['fault']}")
        if len(faults) > FAULTS_MAX:
            say(f"and {len(faults) - FAULTS_MAX} more faults")
        if len(rows) > 1:
            found = counted(len(faults), "fault") if faults else "no faults"
            say(f"{len(rows)} directories, {len(rows) - len(shown)} without segments: {found}")
    if faults:
        raise typer.Exit(1)
