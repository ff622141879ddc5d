"""The tables of a warehouse: a topic's table has a name of its own below one folder.       [IO]

    WAREHOUSE/orders                 the rows of topic `orders`
    WAREHOUSE/orders_dead_letters    its records that could not be decoded, with `--on-error dlq`

Fails  with ConfigError for formats that do not exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kafkalite.errors import ConfigError
from kafkalite.spark.options import check_formats
from kafkalite.warehouse.engines import Engine
from kafkalite.warehouse.load import Layout, Load
from kafkalite.warehouse.parquet_table import ParquetTable
from kafkalite.warehouse.reading import ON_ERROR, Reading, TopicSource


@dataclass(frozen=True, slots=True)
class TopicLoad:
    """A topic, and how its bytes are read: see `kafkalite.spark.options`. ConfigError where that
    is no format.
    """

    topic: str
    key_format: str = "binary"
    value_format: str = "avro"
    on_error: str = "fail"

    def __post_init__(self) -> None:
        check_formats(self.key_format, self.value_format)
        if self.on_error not in ON_ERROR:
            raise ConfigError(f"on-error: {self.on_error!r} is not one of {', '.join(ON_ERROR)}")

    @property
    def table(self) -> str:
        """The table's name, which SQL accepts and which readers of Parquet do not ignore."""
        name = self.topic.replace("-", "_").replace(".", "_")
        return name if name[0].isalpha() else f"topic_{name.lstrip('_')}"

    def into(
        self,
        warehouse: Path,
        bootstrap_servers: str,
        engine: Engine,
        layout: Layout,
        until_ms: int | None = None,
    ) -> Load:
        """The load of this topic into its table."""
        reading = Reading(
            bootstrap_servers,
            self.topic,
            self.key_format,
            self.value_format,
            on_error=self.on_error,
        )
        folder = warehouse.resolve()
        return Load(
            TopicSource(reading, until_ms),
            ParquetTable(folder / self.table),
            ParquetTable(folder / f"{self.table}_dead_letters"),
            engine,
            layout,
        )
