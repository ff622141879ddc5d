"""Directories that come with their first file: a partition without records costs no disk.    [D]

    promises.give("orders-0", fill)     nothing happens
    promises.keep("orders-0/00.log")    before that file is made: the directory, then `fill()`

Owns   which directories are promised. A crash forgets them all, as there is nothing in them. One
       thread at a time for each directory, as for the log in it.
Never  keeps a promise by half: after an error it is still given, and is kept from the beginning the
       next time. So `fill` writes whole files anew.
Fails  with the system's OSError, from the directory or from `fill`.
"""

from __future__ import annotations

from collections.abc import Callable


class Promises:
    """The promised directories of one storage, which makes them by `make_directory`."""

    def __init__(self, make_directory: Callable[[str], None]) -> None:
        self._make_directory = make_directory
        self._fills: dict[str, Callable[[], None]] = {}

    def __contains__(self, directory: str) -> bool:
        return directory in self._fills

    def give(self, directory: str, fill: Callable[[], None]) -> None:
        """The directory will be made, and `fill` called, before the first file in it."""
        self._fills[directory] = fill

    def withdraw(self, directory: str) -> bool:
        """The directory will not be made; whether it was promised."""
        return self._fills.pop(directory, None) is not None

    def keep(self, path: str) -> None:
        """A file is about to be made: makes its directory first, if that is promised."""
        directory = path.rpartition("/")[0]
        fill = self._fills.pop(directory, None)  # before `fill` makes files there itself
        if fill is None:
            return
        try:
            self._make_directory(directory)
            fill()
        except BaseException:
            self._fills[directory] = fill
            raise
