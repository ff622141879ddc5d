"""The record codec measured: native, its pure twin, and aiokafka's where that is installed.

    python -m bench.records [--records 1000] [--codec none] [--repeat 200]

Batches of 8-byte keys (1,000 distinct) and 100-byte values. Each figure is the best of `repeat`
runs, which is what a shared machine disturbs least; read the ratios rather than the rates.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from types import ModuleType

from bench.fastest import fastest
from kafkalite.core.protocol import checksum, record_codec, records, records_pure
from kafkalite.core.protocol.compression import Compression, compress, decompress
from kafkalite.core.types import Columns

PARTITIONS = 4

Calls = dict[str, Callable[[], object]]


def seconds(call: Callable[[], object], repeat: int) -> float:
    return fastest(call, repeat, seconds_max=0.5)


def sample(count: int) -> Columns:
    return Columns(
        [b"%08d" % (i * 7919 % 1000) for i in range(count)],
        [(b"value of record %d " % i * 8)[:100] for i in range(count)],
        [1_700_000_000_000 + i // 4 for i in range(count)],
    )


def cases(twin: ModuleType, columns: Columns, codec: Compression) -> Calls:
    """The calls of one twin. CRC and (de)compression belong to encode, decode and check."""
    batch = records.encode(columns, compression=codec)
    data = decompress(memoryview(batch)[records.BATCH_HEADER_BYTES :], codec)
    packed = partial(compress, compression=codec) if codec else None
    producer = (-1, -1, -1)
    count = len(columns)
    partitions = twin.partition_column(columns.keys, PARTITIONS)

    def decode() -> Columns:
        records.verify_crc(batch, 0, records.read_header(batch))
        decompress(memoryview(batch)[records.BATCH_HEADER_BYTES :], codec)
        decoded: Columns = twin.decode_records(data, count, 0, columns.timestamps[0], None)
        return decoded

    return {
        "encode": lambda: twin.encode_batch(
            columns, int(codec), 0, -1, producer, packed, checksum.crc32c
        ),
        "decode": decode,
        "skim": lambda: twin.skim_records(data, count, count - 1, True),
        "partition": lambda: twin.partition_column(columns.keys, PARTITIONS),
        "split": lambda: twin.split(columns, partitions, PARTITIONS),
    }


def form_cases(columns: Columns, codec: Compression) -> Calls:
    """The same with columns that have no object for a record."""
    batch = records.encode(columns, compression=codec)
    forms = records.decode(batch, as_forms=True)
    forms = Columns(forms.keys, forms.values, forms.timestamps)
    packed = partial(compress, compression=codec) if codec else None
    partitions = record_codec.partition_column(forms.keys, PARTITIONS)
    return {
        "encode": lambda: record_codec.encode_batch(
            forms, int(codec), 0, -1, (-1, -1, -1), packed, checksum.crc32c
        ),
        "decode": lambda: records.decode(batch, as_forms=True),
        "partition": lambda: record_codec.partition_column(forms.keys, PARTITIONS),
        "split": lambda: record_codec.split(forms, partitions, PARTITIONS),
    }


def peer_cases(columns: Columns, codec: Compression) -> Calls:
    try:
        from aiokafka.record.default_records import DefaultRecordBatchBuilder
        from aiokafka.record.memory_records import MemoryRecords
    except ImportError:
        return {}

    rows = list(zip(columns.timestamps, columns.keys, columns.values, strict=True))

    def encode() -> bytes:
        builder = DefaultRecordBatchBuilder(2, int(codec), 0, -1, -1, -1, 1 << 30)
        append = builder.append
        for offset, (timestamp, key, value) in enumerate(rows):
            append(offset, timestamp, key, value, [])
        return bytes(builder.build())

    batch = encode()

    def decode() -> Columns:
        found = MemoryRecords(batch).next_batch()
        assert found is not None
        assert found.validate_crc()
        read = [(r.key, r.value, r.timestamp, r.offset) for r in found]
        return Columns(*(list(column) for column in zip(*read, strict=True)))

    return {"encode": encode, "decode": decode}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--codec", choices=[c.name.lower() for c in Compression], default="none")
    parser.add_argument("--repeat", type=int, default=200)
    options = parser.parse_args()
    columns, codec = sample(options.records), Compression[options.codec.upper()]
    ours = cases(record_codec, columns, codec) if record_codec.NATIVE else {}
    pure = cases(records_pure, columns, codec)
    peer = peer_cases(columns, codec)
    forms = form_cases(columns, codec) if record_codec.NATIVE else {}
    print(f"{options.records} records, codec {options.codec}, CRC by {checksum.IMPLEMENTATION}")
    titles = f"{'M records/s':>12} {'ns/record':>10} {'÷ pure':>8} {'÷ aiokafka':>11}"
    print(f"{'':10} {titles} {'forms, ns':>10}")
    for name, call in pure.items():
        slow = seconds(call, 5)
        fast = seconds(ours[name], options.repeat) if ours else slow
        other = f"{seconds(peer[name], options.repeat) / fast:.1f}" if name in peer else "-"
        rate, each = options.records / fast / 1e6, fast / options.records * 1e9
        form = "-"
        if name in forms:
            form = f"{seconds(forms[name], options.repeat) / options.records * 1e9:.1f}"
        print(f"{name:10} {rate:12.1f} {each:10.1f} {slow / fast:8.0f} {other:>11} {form:>10}")


if __name__ == "__main__":
    main()
