"""Registers `format("kafkalite")` with PySpark, which looks for modules of this name.      [IO]

Every PySpark application imports this, so it imports nothing but the source itself.
"""

from kafkalite.spark.source import KafkaliteSource as DefaultSource

__all__ = ["DefaultSource"]
