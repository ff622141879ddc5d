# cython: language_level=3
"""Rows of a segment as they lie in memory: see `_segment_rows.pyx`.                          [P]"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    WAITS = 1  # for a partner
    LOGGED = 2  # the changelog has seen it

cdef struct Row

cdef struct Entry:  # a key; its bytes follow
    uint64_t hash
    Row *first
    Row *last
    uint32_t size
    uint32_t page

cdef struct Row:  # its value follows
    Row *next  # of its key
    Entry *entry
    int64_t stamp
    uint32_t size
    uint32_t number  # in the order of arrival
    uint8_t flags

cdef struct Listed:
    Row **rows
    Py_ssize_t count
    Py_ssize_t room


cdef class SegmentRows:
    cdef Entry **_slots
    cdef Py_ssize_t _slot_count, _entries
    cdef char **_chunks
    cdef Py_ssize_t _chunk_count
    cdef Py_ssize_t _used, _size  # of the last chunk
    cdef Py_ssize_t _held  # bytes of all chunks
    cdef uint32_t _count
    cdef Listed _news, _mets, _heap

    cdef char *_room_for(self, Py_ssize_t size) except NULL
    cdef Entry *find(self, const char *key, Py_ssize_t size, uint64_t h) noexcept
    cdef Row *add(
        self, const char *key, Py_ssize_t key_size, uint64_t h, int64_t stamp,
        const char *value, Py_ssize_t size, uint8_t flags,
    ) except NULL
    cdef int met(self, Row *row) except -1
    cdef Row *overdue(self, int64_t limit) except? NULL
    cdef int64_t first_wait(self) noexcept
    cdef int _grow(self) except -1
    cdef Entry *_entry(self, const char *key, Py_ssize_t size, uint64_t h) except NULL
    cdef int _push(self, Row *row) except -1
    cdef void _pop(self) noexcept
    cdef Row *_event(self, Py_ssize_t i) noexcept
    cdef Row *_first(self, key) except? NULL


cdef inline const char *key_bytes(const Entry *entry) noexcept:
    return <const char *> (entry + 1)


cdef inline const char *value_bytes(const Row *row) noexcept:
    return <const char *> (row + 1)


cdef uint64_t hashed(const char *key, Py_ssize_t size) noexcept
cdef int listed(Listed *some, Row *row) except -1
