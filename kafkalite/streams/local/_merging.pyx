# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""Numbers of several columns in one order: see ranks.py.                                     [P]"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from kafkalite.core.protocol._int64s cimport Block, Int64s, new_block, new_int64s
from kafkalite.core.protocol._interface cimport check_interface

from kafkalite.core.protocol.records_pure import INTERFACE as RECORDS

check_interface(RECORDS)
INTERFACE = 1


cdef Py_ssize_t end_of_run(
    const int64_t *numbers, const int64_t *places, Py_ssize_t at, Py_ssize_t count
) noexcept nogil:
    """Behind the numbers from `at` on that ascend."""
    at += 1
    while at < count and numbers[places[at - 1]] <= numbers[places[at]]:
        at += 1
    return at


cdef void merged(
    const int64_t *numbers, const int64_t *places, int64_t *out,
    Py_ssize_t start, Py_ssize_t middle, Py_ssize_t end,
) noexcept nogil:
    """Two runs as one; of equal numbers that of the first one comes first."""
    cdef Py_ssize_t one = start, other = middle, at
    for at in range(start, end):
        if other == end or (one < middle and numbers[places[one]] <= numbers[places[other]]):
            out[at] = places[one]
            one += 1
        else:
            out[at] = places[other]
            other += 1


def places_in_order(Int64s column not None):
    """The places by which the numbers ascend, those of equal numbers in their order."""
    cdef Py_ssize_t count = column.size, at, middle, end, runs = 0
    cdef Block here = new_block(count), there = new_block(count)
    for at in range(count):
        here.numbers[at] = at
    while runs != 1 and count:
        runs = at = 0
        while at < count:
            middle = end_of_run(column.numbers, here.numbers, at, count)
            end = count
            if middle < count:
                end = end_of_run(column.numbers, here.numbers, middle, count)
            merged(column.numbers, here.numbers, there.numbers, at, middle, end)
            at = end
            runs += 1
        here, there = there, here
    return new_int64s(here, here.numbers, count)


def ranks(Int64s picks not None, list counts):
    """The ranks of the places that were picked, ascending for each part of so many places."""
    cdef Py_ssize_t total = sum(counts), at, start = 0, end
    cdef Block known = new_block(total), made
    cdef list found = []
    for at in range(total):
        known.numbers[at] = -1
    for at in range(picks.size):
        if not 0 <= picks.numbers[at] < total:
            raise IndexError(f"place {picks.numbers[at]} of {total}")
        known.numbers[picks.numbers[at]] = at
    for count in counts:
        end = start + <Py_ssize_t> count
        made = new_block(end - start)
        at = 0
        for start in range(start, end):
            made.numbers[at] = known.numbers[start]
            at += known.numbers[start] >= 0
        start = end
        found.append(new_int64s(made, made.numbers, at))
    return found


def shifted(Int64s numbers not None, int by):
    """Each number times 2 to the power of `by`."""
    cdef Block made = new_block(numbers.size)
    cdef Py_ssize_t at
    for at in range(numbers.size):
        made.numbers[at] = numbers.numbers[at] << by
    return new_int64s(made, made.numbers, numbers.size)


def bytes_at(bytes data not None, Int64s places not None):
    """The bytes at these places."""
    cdef bytes made = PyBytes_FromStringAndSize(NULL, places.size)
    cdef Py_ssize_t at
    for at in range(places.size):
        if not 0 <= places.numbers[at] < PyBytes_GET_SIZE(data):
            raise IndexError(f"byte {places.numbers[at]} of {len(data)}")
        PyBytes_AS_STRING(made)[at] = PyBytes_AS_STRING(data)[places.numbers[at]]
    return made
