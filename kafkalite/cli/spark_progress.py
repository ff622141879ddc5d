"""Progress of a load on stderr, where that is a terminal: records, rate and time left.      [IO]"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(topic: str) -> Iterator[Callable[[int, int], None]]:
    """A function to call with the records that are staged and those of the plan."""
    if not sys.stderr.isatty():
        yield lambda _staged, _planned: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed or 0:,.0f} records/s")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate())
    console = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(topic, total=None)
        yield lambda staged, planned: bar.update(task, completed=staged, total=planned)
