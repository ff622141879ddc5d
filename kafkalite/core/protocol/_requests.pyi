"""The native readers and writers of the usual Produce and Fetch; see `usual_requests`.       [P]"""

from kafkalite.core.protocol.primitives import Buffer

def read_produce(body: Buffer, version: int) -> tuple[int, str, int, int, int] | None: ...
def read_poll(
    body: Buffer, version: int
) -> tuple[int, int, int, int, int, int, str | bytes | None, int, int, int, int] | None: ...
def write_produce(
    version: int,
    correlation_id: int,
    topic: str,
    partition: int,
    base_offset: int,
    log_append_time_ms: int,
    log_start_offset: int,
) -> bytes: ...
def write_poll(
    version: int,
    correlation_id: int,
    session_id: int,
    topic: str | bytes,
    partition: int,
    high_watermark: int,
    last_stable_offset: int,
    log_start_offset: int,
    is_committed: bool,
    record_bytes: int,
) -> bytes: ...
