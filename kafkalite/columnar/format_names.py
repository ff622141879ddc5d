"""The names of formats of keys and values, for options of Spark and of loads.             [P]

    key      binary (default), string, windowed, windowed:SIZE
    value    binary, string, avro, json

Owns   nothing. Every Spark application imports this: it imports the serdes only for windowed keys.
Fails  with ConfigError, naming the option and its value.
"""

from __future__ import annotations

from typing import Final

from kafkalite.errors import ConfigError

VALUE_FORMATS: Final = ("binary", "string", "avro", "json")
KEY_FORMATS: Final = ("binary", "string", "windowed", "windowed:SIZE")


def check_key_format(text: str) -> None:
    """ConfigError unless this is a `key.format`."""
    if text in ("binary", "string"):
        return
    from kafkalite.serde.primitives import string
    from kafkalite.serde.windowed import named_windowed

    try:
        is_windowed = named_windowed(text, string()) is not None
    except ConfigError as error:
        raise ConfigError(f"key.format: {text!r}: {error}") from error
    if not is_windowed:
        raise ConfigError(f"key.format: {text!r} is not one of {', '.join(KEY_FORMATS)}")


def check_value_format(text: str) -> None:
    """ConfigError unless this is a `value.format`."""
    if text not in VALUE_FORMATS:
        raise ConfigError(f"value.format: {text!r} is not one of {', '.join(VALUE_FORMATS)}")
