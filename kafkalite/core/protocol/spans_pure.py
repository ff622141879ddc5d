"""Columns of a batch without an object for each record, where there is no native code.       [P]

There are none then: columns are lists. The names are here, so that nobody has to ask twice.

Owns   nothing.
"""

from __future__ import annotations

from kafkalite.core.columns import Form
from kafkalite.core.protocol.records_pure import decode_records


class Spans(Form):
    """Bytes and None, as places in a buffer. Never made."""


class Int64s(Form):
    """Integers of 64 bits. Never made."""


decode_forms = decode_records
