"""Windows by key and by end, packed; see _table.pyi.                                         [P]"""

from kafkalite.core.types import Headers

INTERFACE: int

class Windows:
    count: int
    cold: int
    waiting: int
    newest_start: int
    headers: dict[int, Headers]

    def __new__(cls, kinds: bytes, of_sessions: bool, length: int, deletes: bool) -> Windows: ...
