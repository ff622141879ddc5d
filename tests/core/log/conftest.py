"""A log over either storage, and batches to put into it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from logs import ORDERS, MakeBatch, OpenLog

from kafkalite.core.config.settings import LogConfig
from kafkalite.core.log.partition_log import PartitionLog
from kafkalite.core.log.port import Storage
from kafkalite.core.log.storage import FileStorage
from kafkalite.core.protocol.records import encode
from kafkalite.core.types import Columns
from kafkalite.testing import clock
from kafkalite.testing.storage import MemoryStorage


@pytest.fixture(params=["memory", "disk"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    made: Storage = MemoryStorage() if request.param == "memory" else FileStorage(tmp_path)
    yield made
    made.close()


@pytest.fixture
def memory() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture(scope="session")
def batch() -> MakeBatch:
    def make(
        count: int = 1,
        *,
        value: bytes = b"value",
        key: bytes | None = b"key",
        timestamp: int = 1_000,
        step: int = 0,
        **arguments: Any,
    ) -> bytearray:
        timestamps = [timestamp + i * step for i in range(count)]
        return bytearray(encode(Columns([key] * count, [value] * count, timestamps), **arguments))

    return make


@pytest.fixture(scope="session")
def open_log() -> OpenLog:
    def make(
        storage: Storage, *, clean: bool = False, now_ms: int = 1_000, at: int = 0, **settings: Any
    ) -> PartitionLog:
        """`at` is the recovery point; `settings` those of LogConfig."""
        storage.make_directory("orders-0")
        start = settings.pop("log_start_offset", 0)
        return PartitionLog.open(
            storage,
            "orders-0",
            ORDERS,
            LogConfig(**settings),
            clock.at(now_ms),
            clean_shutdown=clean,
            recovery_point=at,
            log_start_offset=start,
        )

    return make
