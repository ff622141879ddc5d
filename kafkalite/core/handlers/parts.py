"""Requests with very many entries, answered part by part.                                   [P]

    request ──split──> parts ──handler, a part in each turn of the loop──> answers ──> one answer

The entries of such a request do not depend on each other, so each part is a request that the same
handler answers. `Parts` says where the entries lie in the request and in its answer:

    Parts("topics.partition_indexes", "topics.partitions")

Owns   nothing.
Never  sees a request with few entries: `handlers.service` calls its handler directly.
Fails  with the handler's error. The parts before it took effect, as single requests would have.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any, Final

from kafkalite.core.handlers.slices import Answered
from kafkalite.core.pending import Pending
from kafkalite.errors import ErrorCode

ENTRIES_PER_PART: Final = 500  # some 5 us each

Path = Sequence[str]  # names of arrays, the outermost first
Handler = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Parts:
    """How the requests of one API are split, and how the answers to their parts are joined."""

    asked: str  # the arrays of the request, the outermost first
    answered: str  # the arrays of the answer
    size: int = ENTRIES_PER_PART
    identity: Callable[[Any], Hashable] | None = None  # of outer entries; the last of equals counts

    def fits(self, request: Any) -> bool:
        """Whether the request has such entries: some APIs have other arrays in older versions."""
        return bool(getattr(request, self.asked.split(".")[0]))

    def answer(self, request: Any, handler: Handler) -> Generator[Any, None, Any]:
        """The answer to a request, made of the handler's answers to its parts."""
        answers = []
        for part in self.split(request):
            answer = handler(part)
            if isinstance(answer, Pending):
                yield Answered(answer)
                answer = answer.response
            if isinstance(answer, Exception):
                raise answer
            answers.append(answer)
            yield
        return joined(answers, self.answered.split("."))

    def split(self, request: Any) -> Iterator[Any]:
        """The request in parts of `size` entries at most; an empty array counts as an entry."""
        path = self.asked.split(".")
        if self.identity is not None:
            entries = getattr(request, path[0])
            distinct = {self.identity(entry): entry for entry in entries}
            request = replace(request, **{path[0]: tuple(distinct.values())})
        for part, _ in _pieces(request, path, self.size):
            yield part


def _pieces(message: Any, path: Path, size: int) -> Iterator[tuple[Any, int]]:
    """`message` in pieces with `size` entries at most, and how many entries each has."""
    name, inner = path[0], path[1:]
    entries = getattr(message, name) or ()
    if len(entries) <= size and not inner:
        yield message, max(1, len(entries))
        return
    if not inner:
        for first in range(0, len(entries), size):
            piece = entries[first : first + size]
            yield replace(message, **{name: piece}), len(piece)
        return
    if not entries:
        yield message, 1
        return
    taken: list[Any] = []
    count = 0
    for entry in entries:
        for piece, piece_count in _pieces(entry, inner, size):
            if taken and count + piece_count > size:
                yield replace(message, **{name: tuple(taken)}), count
                taken, count = [], 0
            taken.append(piece)
            count += piece_count
    yield replace(message, **{name: tuple(taken)}), count


def joined(answers: Sequence[Any], path: Path) -> Any:
    """One message of several that differ in the arrays of `path`. An entry that was split between
    two of them is whole again. The first message with an error gives the other fields."""
    if len(answers) == 1:
        return answers[0]
    name, inner = path[0], path[1:]
    arrays = [getattr(answer, name) for answer in answers]
    whole = _joined_entries(arrays, inner) if inner else chain.from_iterable(arrays)
    failed = (each for each in answers if getattr(each, "error_code", ErrorCode.NONE))
    return replace(next(failed, answers[0]), **{name: tuple(whole)})


def _joined_entries(arrays: Iterable[Sequence[Any]], inner: Path) -> Iterator[Any]:
    """The entries of all arrays; the last of one and the first of the next may be parts of one."""
    run: list[Any] = []
    for entries in arrays:
        if run and entries and not _are_parts_of_one(run[0], entries[0], inner[0]):
            yield joined(run, inner)
            run = []
        run.extend(entries[:1])
        if len(entries) > 1:
            yield joined(run, inner)
            yield from entries[1:-1]
            run = [entries[-1]]
    if run:
        yield joined(run, inner)


def _are_parts_of_one(one: Any, other: Any, array: str) -> bool:
    """Whether two entries are about the same: they differ in `array` and in errors alone."""
    ignored = (array, "error_code")
    names = (each.name for each in fields(one) if each.name not in ignored)
    return all(getattr(one, name) == getattr(other, name) for name in names)
