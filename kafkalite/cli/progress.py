"""A progress bar on stderr for work that takes long.                                      [IO]

Owns   the bar, if stderr is a terminal; nothing is drawn elsewhere.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

DRAW_SECONDS: Final = 0.1


class Progress:
    """Shows bytes of `total_bytes` (None: unknown), records and records/s."""

    def __init__(self, total_bytes: int | None, *, enabled: bool) -> None:
        self._total = total_bytes
        self._bar: Any = None
        self._enabled = enabled and sys.stderr.isatty()
        self._task: Any = None
        self._started = time.monotonic()
        self._drawn = 0.0

    def __enter__(self) -> Self:
        if self._enabled:
            from rich import progress
            from rich.console import Console

            self._bar = progress.Progress(
                progress.SpinnerColumn(),
                progress.BarColumn(),
                progress.DownloadColumn(),
                progress.TextColumn("{task.description}"),
                progress.TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("", total=self._total)
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def after(self, done_bytes: int, records: int) -> Callable[[int, int], None]:
        """A `show` for a part of the work, when other parts are done already."""
        return lambda more_bytes, more: self.show(done_bytes + more_bytes, records + more)

    def show(self, done_bytes: int, records: int) -> None:
        """Draws the progress so far, ten times a second at the most."""
        now = time.monotonic()
        if self._bar is None or now < self._drawn + DRAW_SECONDS:
            return
        self._drawn = now
        rate = records / max(now - self._started, 1e-9)
        text = f"{records:,} records, {rate:,.0f}/s"
        self._bar.update(self._task, completed=done_bytes, description=text)
