"""The native twins of records_pure that read: same names, same results, same errors.        [P]"""

from typing import final

from kafkalite.core.protocol.records_pure import Buffer
from kafkalite.core.protocol.records_pure import check_batch as check_batch
from kafkalite.core.protocol.records_pure import decode_records as decode_records
from kafkalite.core.protocol.records_pure import skim_records as skim_records
from kafkalite.core.protocol.records_pure import unfit_records as unfit_records

@final
class Window:
    def __init__(self, data: Buffer, start: int = 0) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
