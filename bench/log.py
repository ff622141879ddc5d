"""The log measured: what an append costs beyond the check of its batch, reads, and many logs.

    python bench/log.py [--directory DIR] [--partitions 2000]

Appends go to a real file system. `check` is `records.check_produced` alone (CRC, framing), `write`
one os.write of as many bytes; what is left of `append` is the log's own. Read the ratios.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from time import perf_counter
from uuid import UUID

from kafkalite.core.config.settings import LogConfig
from kafkalite.core.log.partition_log import PartitionLog
from kafkalite.core.log.storage import FileStorage
from kafkalite.core.log.store import LogStore
from kafkalite.core.protocol.record_codec import NATIVE
from kafkalite.core.protocol.records import check_produced, encode
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.testing.clock import at

TOPIC_ID = UUID(int=1)
SHAPES = ((1, 20_000), (16, 20_000), (150, 10_000), (1_000, 2_000))  # records a batch, batches
NOW_MS = 1_700_000_000_000


def microseconds(act: Callable[[bytearray], object], over: Iterable[bytearray]) -> float:
    """Of one call, the mean."""
    todo = list(over)
    began = perf_counter()
    for one in todo:
        act(one)
    return (perf_counter() - began) / len(todo) * 1e6


def append_to(log: PartitionLog, batch: bytearray) -> None:
    log.append_as_leader(batch, 0, NOW_MS)


def appends(directory: Path) -> None:
    for records, count in SHAPES:
        columns = Columns([b"key-%05d" % i for i in range(records)], [b"v" * 100] * records,
                          [NOW_MS] * records)  # fmt: skip
        plain = encode(columns)
        numbered = (
            bytearray(encode(columns, producer_id=1, producer_epoch=0, base_sequence=i * records))
            for i in range(count)
        )
        store = LogStore(FileStorage(directory / str(records)))
        log = store.open(TopicPartition("t", 0), TOPIC_ID, LogConfig(), at(NOW_MS))
        twin = store.open(TopicPartition("t", 1), TOPIC_ID, LogConfig(), at(NOW_MS))
        raw = os.open(directory / "raw", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        copies = [bytearray(plain) for _ in range(count)]
        check = microseconds(check_produced, copies)
        write = microseconds(partial(os.write, raw), copies)
        append = microseconds(partial(append_to, log), copies)
        idempotent = microseconds(partial(append_to, twin), numbered)
        os.close(raw)
        os.unlink(directory / "raw")
        print(
            f"append {len(plain):7} bytes: {append:6.1f} us = check {check:5.1f} + write "
            f"{write:5.1f} + own {append - check - write:4.1f}; idempotent {idempotent:6.1f}"
        )
        if records == 16:
            reads(log)


def reads(log: PartitionLog) -> None:
    log.high_watermark = end = log.log_end_offset
    offsets = range(0, end // 2, max(end // 20_000, 1))
    began = perf_counter()
    for offset in offsets:
        log.read(offset, 1 << 20, end)
    scattered = (perf_counter() - began) / len(offsets) * 1e6
    offset, count, began = 0, 0, perf_counter()
    while (found := log.read(offset, 64 << 10, end)) is not None:
        offset += 16 * (found.size_bytes // (log.size_bytes * 16 // end))
        count += 1
    onwards = (perf_counter() - began) / count * 1e6
    print(f"read: anywhere {scattered:.1f} us, onwards in 64 KiB {onwards:.1f} us")


def many(directory: Path, partitions: int) -> None:
    data = bytes(encode(Columns([None], [b"v" * 100], [NOW_MS])))
    where = [TopicPartition("many", i) for i in range(partitions)]
    for what in ("make", "open clean", "open unclean"):
        began = perf_counter()
        store = LogStore(FileStorage(directory / "many"))
        logs = [store.open(one, TOPIC_ID, LogConfig(), at(NOW_MS)) for one in where]
        opened = perf_counter() - began
        for log in logs:
            log.append_as_leader(data, 0, NOW_MS)
        began = perf_counter()
        closing = ""
        if what == "make":
            store.close(NOW_MS)
            closing = f", close {(perf_counter() - began) / partitions * 1e6:.0f}"
        print(f"{partitions} logs: {what} {opened / partitions * 1e6:.0f} us each{closing}")
        for log in logs:
            log.abandon()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--directory", type=Path, help="where to write; a temporary one if not")
    arguments.add_argument("--partitions", type=int, default=2_000)
    chosen = arguments.parse_args()
    directory = Path(tempfile.mkdtemp(dir=chosen.directory))
    print(f"native codec: {NATIVE}; below {directory}")
    try:
        appends(directory)
        many(directory, chosen.partitions)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
