"""The output of `--json`, command by command: the fields by name.                           [P]

`[…]` is a list, `{NAME: …}` an object whose names are data. Bytes and sizes are numbers of bytes,
times epoch ms or ISO 8601. Fields keep their names and meaning; new ones may be added.

Owns   the lines of the page; a test compares them with what commands print.
"""

from __future__ import annotations

from typing import Final

_MOVED: Final = "partitions: [{topic, partition, committed, new, begin, end}]"
_PLAN: Final = (
    "{executed, replicas_to_copy, bytes_to_copy, partitions: [{topic, partition, from, to, "
    "copied_by, bytes}], brokers: [{id, replicas, preferred_leaders}], elections}"
)
_PERF: Final = "latency_ms: {p50, p95, p99, p99.9, max}, latency_samples"
_RATES: Final = "topic, records, bytes, seconds, records_per_second"
_PRODUCER: Final = (
    "topic, partition, producer_id, producer_epoch, coordinator_epoch, last_sequence, "
    "last_timestamp, start_offset"
)

SHAPES: Final = {
    "kafkalite server start": (
        "{address, listeners: {NAME: address}, registry, http, data_dir, pid}"
    ),
    "kafkalite cluster start": "{address, brokers: [{id, address, pid}], zookeeper, data_dir, pid}",
    "kafkalite cluster status": (
        "{cluster_id, controller, brokers: [{id, address, rack, is_up, leaders, preferred_leaders, "
        "replicas, out_of_sync}], topics, internal_topics, partitions, offline, under_replicated, "
        "below_min_isr, troubles: [{topic, partition, troubles, leader, replicas, isr, min_isr}], "
        "moves: [{topic, partition, replicas, adding, removing}]}"
    ),
    "kafkalite cluster move": f"{_PLAN}; with --cancel {{cancelled}}",
    "kafkalite cluster rebalance": _PLAN,
    "kafkalite cluster drain": _PLAN,
    "kafkalite server status": (
        "{cluster_id, controller, brokers: [{id, host, port, rack, log_dirs: [{path, error, bytes, "
        "total_bytes, usable_bytes}]}], topics, internal_topics, partitions, offline_partitions, "
        "under_replicated_partitions, apis: [{key, name, min_version, max_version}]}"
    ),
    "kafkalite topics list": "[{name, partitions, replication_factor, internal}]",
    "kafkalite topics describe": (
        "[{name, id, internal, partitions: [{partition, leader, leader_epoch, replicas, isr, "
        "offline, state, begin, end, bytes}], configs: {NAME: {value, source}}}]"
    ),
    "kafkalite topics create": "[{name, created, exists}]",
    "kafkalite topics alter": "[{name, altered}]",
    "kafkalite topics trim": "[{topic, partition, begin}]",
    "kafkalite topics delete": "[{name, deleted}]",
    "kafkalite produce": f"{{{_RATES}, interrupted}}",
    "kafkalite consume": (
        "{topic, partition, offset, timestamp, key, value, headers: [[NAME, VALUE]]}, a line each; "
        "key_base64 or value_base64 for bytes that are not UTF-8"
    ),
    "kafkalite groups list": "[{group, state, protocol}]",
    "kafkalite groups describe": (
        "[{group, state, protocol_type, assignor, lag, members: [{member, instance, client, host, "
        "partitions}], partitions: [{topic, partition, committed, end, lag, member, metadata}]}]"
    ),
    "kafkalite groups reset-offsets": f"{{group, executed, {_MOVED}}}",
    "kafkalite groups delete": "[{group, deleted}]",
    "kafkalite groups delete-offsets": "[{topic, partition, deleted}]",
    "kafkalite configs describe": (
        "[{name, value, source, type, read_only, sensitive, synonyms: [{name, value, source}], "
        "documentation}]"
    ),
    "kafkalite configs alter": "{type, name, altered}",
    "kafkalite transactions list": "[{transactional_id, state, producer_id, coordinator}]",
    "kafkalite transactions describe": (
        "[{transactional_id, state, producer_id, producer_epoch, timeout_ms, started, open_ms, "
        "partitions}]"
    ),
    "kafkalite transactions producers": f"[{{{_PRODUCER}}}]",
    "kafkalite transactions find-hanging": f"[{{{_PRODUCER}}}]",
    "kafkalite transactions abort": (
        "{transactional_id, producer_id, producer_epoch}; with --hanging "
        "{partition, producer_id, start_offset}"
    ),
    "kafkalite log dump": "{file, what, …}, a line each; its other fields depend on what",
    "kafkalite log verify": (
        "{logs: [{directory, segments, batches, records, bytes, faults}], "
        "faults: [{file, position, fault}]}"
    ),
    "kafkalite perf produce": f"{{{_RATES}, mb_per_second, {_PERF}}}",
    "kafkalite perf consume": f"{{{_RATES}, mb_per_second, first_record_ms, {_PERF}}}",
    "kafkalite registry start": "{url, log}",
    "kafkalite-streams run": (
        "{application_id, records, written, restored, dropped: [{reason, operator, records}], "
        "seconds}; with Spark {application_id, records, micro_batches, dropped, seconds}"
    ),
    "kafkalite-streams export-state": (
        "{application_id, moved, batch, tasks, rows, offsets: [{topic, partition, offset}]}"
    ),
    "kafkalite-streams reset": (
        "{application_id, executed, offsets: [{topic, partition, from, to}], topics, state_dir}"
    ),
    "kafkalite-streams dlq list": "[{topic, operator, error, letters, last, message}]",
    "kafkalite-streams dlq show": (
        "{topic, partition, offset, operator, message, replays, timestamp, key, value, "
        "headers: [[NAME, VALUE]], stacktrace}"
    ),
    "kafkalite-streams dlq replay": (
        "{executed, sent: {TOPIC: letters}, replayed_before, failed_again, cut}"
    ),
    "kafkalite-streams status": (
        "{application_id, lag, workers: [{worker, tasks, state, reasons, records, "
        "records_per_second}], tasks: [{task, worker, lag, stores, records, "
        "records_per_second}]}"
    ),
    "kafkalite-streams describe": (
        "{application_id, sub_topologies: [{id, nodes: [{name, operator, detail, parents}], "
        "stores: [{name, changelog, key, value}], "
        "source_topics, sink_topics, internal_topics}]}; with Spark {application_id, engine, "
        "levels, sub_topologies: [{id, level, runs, nodes: [{name, operator, way}], stores}]}"
    ),
    "kafkalite-spark compact": "{tables: [{table, merged_files, made_files, removed_files}]}",
    "kafkalite-spark load": (
        "{tables: [{topic, table, records, files, updated, deleted, skipped, dead_letters, "
        "gaps: [{topic, partition, start, end}], changes, rewritten_files, lag, seconds, "
        "merged_files, made_files, removed_files}], records, seconds, rate, lag, rows}; "
        "with --continuous one such document for each load"
    ),
}
