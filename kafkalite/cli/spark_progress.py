"""Progress of a load on stderr, where that is a terminal: records, rate, lag and time left. [IO]

The engine reports ranges once they are staged. Spark does so at the end of all of them, so the
display also looks which ranges workers have staged, each time that it is drawn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkalite.warehouse.load import Load


@contextmanager
def progress(topic: str, load: Load | None = None) -> Iterator[Callable[[int, int], None]]:
    """A function to call with the records that are staged and those of the plan."""
    if not sys.stderr.isatty():
        yield lambda _staged, _planned: None
        return
    from rich.console import Console, RenderableType
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

    class Lag(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.remaining or 0:,.0f} behind")

    class Watching(Progress):
        def get_renderables(self) -> Iterator[RenderableType]:
            if load is not None and load.planned:
                self.update(task, completed=load.staged(), total=load.planned)
            yield from super().get_renderables()

    bar = Watching(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        Lag(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(topic, total=None)
    with bar:
        yield lambda staged, planned: bar.update(task, completed=staged, total=planned)
