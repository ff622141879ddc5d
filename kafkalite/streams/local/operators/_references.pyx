# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, binding=False
"""The loops of a join by a foreign key. The twin, references_pure.py, says what they do.    [P]"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint32_t
from libc.string cimport memcmp, memcpy, memset

from kafkalite.streams.foreign import ANSWER, ASKED
from kafkalite.streams.foreign import HASH_BYTES as HASH_LENGTH
from kafkalite.streams.foreign import VERSION as WRITTEN
from kafkalite.streams.local.operators.reference_columns import Asks, Matched

INTERFACE = 1

cdef enum:
    VERSION = 1
    HEAD = 23  # of Asked and Answer: three bytes, task, hash
    KEPT = 3
    HASH = 7
    HASH_BYTES = 16
    PREFIX = 5  # before keys of the store: 0, length of the foreign key

cdef enum:  # What
    FORGET = 0
    FORGET_AND_ANSWER = 1
    ANSWER_IT = 2
    IF_THERE = 3
    NOTHING = 4

assert (VERSION, HEAD, HEAD, HASH_BYTES) == (WRITTEN, ASKED.size, ANSWER.size, HASH_LENGTH)


cdef inline void put_number(char *out, uint32_t number) noexcept nogil:
    """The highest byte first."""
    cdef int byte
    for byte in range(4):
        out[byte] = <char> (number >> 8 * (3 - byte) & 0xFF)


cdef bytes new_asked(int what, bytes its, int32_t task, bytes left):
    """An Asked; `its`: the left row's hash, None for none."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(left)
    cdef bytes made = PyBytes_FromStringAndSize(NULL, HEAD + size)
    cdef char *out = PyBytes_AS_STRING(made)
    out[0], out[1], out[2] = VERSION, what, its is not None
    put_number(out + KEPT, <uint32_t> task)
    if its is None:
        memset(out + HASH, 0, HASH_BYTES)
    else:
        memcpy(out + HASH, PyBytes_AS_STRING(its), HASH_BYTES)
    memcpy(out + HEAD, PyBytes_AS_STRING(left), size)
    return made


cdef inline bint are_equal(bytes a, bytes b):
    """Of two foreign keys that are not None; hot, and bytes compare slower as objects."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(a)
    return (
        size == PyBytes_GET_SIZE(b)
        and memcmp(PyBytes_AS_STRING(a), PyBytes_AS_STRING(b), size) == 0
    )


def asks(
    list lefts not None, list olds not None, list news not None, list old_keys not None,
    list new_keys not None, list hashes not None, int32_t task, bint is_left,
):
    """What updates of left rows ask for, given what these refer to and their hashes."""
    cdef list records = [], keys = [], values = []
    cdef bytearray of_old = bytearray()
    cdef Py_ssize_t index
    cdef bint was, is_there, moves
    cdef int of_old_key, of_new_key
    cdef bytes old, new, its
    columns = (lefts, olds, news, old_keys, new_keys)
    assert all(len(column) == len(hashes) for column in columns), "columns of several lengths"
    for index in range(len(hashes)):
        its, old = hashes[index], old_keys[index]
        new = None if its is None else new_keys[index]
        was, is_there = olds[index] is not None, news[index] is not None
        moves = old is not None and (new is None or not are_equal(old, new))
        of_old_key = of_new_key = NOTHING
        if is_left:
            if was or is_there:
                of_old_key, of_new_key = FORGET if moves else NOTHING, ANSWER_IT
        elif not is_there or new is None:
            if old is not None:
                of_old_key = FORGET_AND_ANSWER
        elif moves:
            of_old_key, of_new_key = FORGET, ANSWER_IT
        else:
            of_new_key = IF_THERE
        if of_old_key != NOTHING:
            records.append(index)
            of_old.append(1)
            keys.append(old)
            values.append(new_asked(of_old_key, its, task, lefts[index]))
        if of_new_key != NOTHING:
            records.append(index)
            of_old.append(0)
            keys.append(new)
            values.append(new_asked(of_new_key, its, task, lefts[index]))
    return Asks(records, of_old, keys, values)


cdef bytes new_place(bytes key, const char *left, Py_ssize_t size):
    """The key of the store of who refers to what."""
    cdef Py_ssize_t length = PyBytes_GET_SIZE(key)
    cdef bytes made = PyBytes_FromStringAndSize(NULL, PREFIX + length + size)
    cdef char *out = PyBytes_AS_STRING(made)
    out[0] = 0
    put_number(out + 1, <uint32_t> length)
    memcpy(out + PREFIX, PyBytes_AS_STRING(key), length)
    memcpy(out + PREFIX + length, left, size)
    return made


cdef inline const char *head_of(bytes written) except NULL:
    """The bytes of an Asked or an Answer."""
    assert PyBytes_GET_SIZE(written) >= HEAD, "neither an Asked nor an Answer"
    return PyBytes_AS_STRING(written)


def matched(list keys not None, list asked not None, list stamps not None):
    """What changes in the store of references, and the records that may be answered."""
    cdef list changes = [], answered = []
    cdef Py_ssize_t index
    cdef const char *data
    cdef int what
    cdef bytes key, each, place
    assert len(keys) == len(asked) == len(stamps), "columns of several lengths"
    for index in range(len(asked)):
        key, each = keys[index], asked[index]
        data = head_of(each)
        what = data[1]
        if key is not None:
            place = new_place(key, data + HEAD, PyBytes_GET_SIZE(each) - HEAD)
            if what == FORGET or what == FORGET_AND_ANSWER:
                changes.append((place, None, stamps[index]))
            else:
                assert data[2], "a reference of no row"
                changes.append((place, data[KEPT:HEAD], stamps[index]))
        if what != FORGET:
            answered.append(index)
    return Matched(changes, answered)


def answers(list asked not None, list rows not None):
    """Left keys, and the Answers that their tasks get."""
    cdef list keys = [], values = []
    cdef Py_ssize_t index, size
    cdef const char *data
    cdef char *out
    cdef bytes each, row, made
    assert len(asked) == len(rows), "columns of several lengths"
    for index in range(len(asked)):
        each, row = asked[index], rows[index]
        data = head_of(each)
        keys.append(PyBytes_FromStringAndSize(data + HEAD, PyBytes_GET_SIZE(each) - HEAD))
        size = 0 if row is None else PyBytes_GET_SIZE(row)
        made = PyBytes_FromStringAndSize(NULL, HEAD + size)
        out = PyBytes_AS_STRING(made)
        memcpy(out, data, HEAD)
        out[1] = row is not None
        if size:
            memcpy(out + HEAD, PyBytes_AS_STRING(row), size)
        values.append(made)
    return keys, values


def opened(list answers not None, list hashes not None):
    """Which answers are to the left rows as they are now, and the right rows of these."""
    cdef Py_ssize_t index, count = len(answers)
    cdef bytearray fresh = bytearray(count)
    cdef char *verdicts = fresh
    cdef list rows = []
    cdef const char *data
    cdef bytes each, its
    cdef bint is_fresh
    assert count == len(hashes), "columns of several lengths"
    for index in range(count):
        each, its = answers[index], hashes[index]
        data = head_of(each)
        if its is None or not data[2]:
            is_fresh = its is None and not data[2]
        else:
            is_fresh = memcmp(data + HASH, PyBytes_AS_STRING(its), HASH_BYTES) == 0
        if is_fresh:
            verdicts[index] = 1
            rows.append(
                PyBytes_FromStringAndSize(data + HEAD, PyBytes_GET_SIZE(each) - HEAD)
                if data[1] else None
            )
    return fresh, rows
