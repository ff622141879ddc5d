"""Descriptions of a topology: as text, as a mermaid flowchart, as JSON.                    [P]

    text      sub-topologies, each with its operators, stores and topics, as Kafka Streams prints
    mermaid   a flowchart, topics as cylinders, for a README
    json      the same facts for programs

The plan is shown as it will run: repartition topics, stores and serdes included.
"""

from __future__ import annotations

import json
from typing import Any, Literal, get_args

from kafkalite.errors import TopologyError
from kafkalite.streams import plan as p
from kafkalite.streams.durations import spell
from kafkalite.streams.functions import Function, TopicOf
from kafkalite.streams.rewrites import SubTopology, sub_topologies

Format = Literal["text", "mermaid", "svg", "json"]


def describe(plan: p.Plan, format: Format = "text") -> str:  # noqa: A002 - the word users know
    """`plan` in one of the forms above. TopologyError for another form."""
    forms = {"text": _text, "mermaid": _mermaid, "json": _json}
    if format not in forms:
        known = ", ".join(get_args(Format))
        raise TopologyError(f"describe: expected one of {known}, got {format!r}")
    return forms[format](plan, sub_topologies(plan))


def detail(node: p.Node) -> str:
    """The description of a node in the user's words, as far as data can tell."""
    match node:
        case p.Source():
            read = ", ".join(node.topics) or f"/{node.pattern.pattern if node.pattern else ''}/"
            return f"topics: {read}; key {node.key!r}, value {node.value!r}{_history(node)}"
        case p.MapAsync():
            order = "ordered" if node.ordered else "ordered by key"
            return f"{node.function}; {node.limits}, {order}"
        case p.Sink():
            topic = node.topic if isinstance(node.topic, str) else _name(node.topic)
            folds = "" if node.folds is None else f"; folds ahead: {detail(node.folds)}"
            return f"topic: {topic}; key {node.key!r}, value {node.value!r}{folds}"
        case p.Aggregate():
            parts = [str(part) for part in node.aggregates]
            if node.fields is not None:
                parts = [f"{f}={a}" for f, a in zip(node.fields, parts, strict=True)]
            over = "" if node.window is None else f" over {node.window}"
            return ", ".join(parts) + over
        case p.Final() | p.FinalRows():
            return "" if node.idle_ms is None else f"stream.idle: {spell(node.idle_ms)}"
        case p.Suppress():
            most = "" if node.max_records is None else f", at most {node.max_records} rows"
            return f"{spell(node.limit_ms)}{most}"
        case p.Branch():
            functions = [*map(str, node.predicates), *["default"] * node.default]
            return ", ".join(functions)
        case p.JoinOfStreams():
            return f"{node.how}: {node.function}, {within(node)}"
        case p.Reference():
            return str(node.select)
        case p.Expire():
            return spell(node.retention_ms)
        case p.ToTable():
            return _history(node).removeprefix("; ")
        case p.StreamTableJoin():
            grace = "" if node.grace_ms is None else f", grace {spell(node.grace_ms)}"
            return f"{node.how}: {node.function}{grace}"
        case p.TableJoin() | p.ForeignJoin():
            return f"{node.how}: {node.function}"
        case p.MapBatch():
            return _name(node.function)
        case p.Pattern():
            steps = ", ".join(map(_step, node.steps))
            without = f", not_between={node.without}" if node.without is not None else ""
            grace = f", grace={spell(node.grace_ms)}" if node.grace_ms else ""
            return f"{steps}{without}, within={spell(node.within_ms)}{grace}"
        case p.Process():
            listed = (*map(str, node.stores), *(table.name for table in node.tables))
            stores = f"; stores: {', '.join(listed)}" if listed else ""
            return f"{_name(node.make)}{stores}"
        case p.GlobalJoin():
            by = "" if node.select is None else f" by {node.select}"
            return f"{node.how} join with global table {node.table}{by}: {node.function}"
    function = getattr(node, "function", None)
    return str(function) if isinstance(function, Function) else ""


def _step(step: p.PatternStep) -> str:
    if not step.repeats:
        return f"{step.name}={step.condition}"
    return f"{step.name}=repeated({step.condition}, {step.at_least} to {step.at_most})"


def within(node: p.JoinOfStreams) -> str:
    """How far the timestamps of a pair may be apart."""
    match node:
        case p.StreamJoin():
            words = f"within=({spell(node.before_ms)}, {spell(node.after_ms)})"
        case p.AsOfJoin():
            words = f"tolerance={spell(node.tolerance_ms)}"
        case _:
            raise AssertionError(node)
    return words + (f", grace={spell(node.grace_ms)}" if node.grace_ms else "")


def _history(node: p.Node) -> str:
    its = getattr(node, "history_ms", None)
    return "" if its is None else f"; history {spell(its)}"


def kind(node: p.Node) -> str:
    """The operator's word: `filter`, `select_key`."""
    name = type(node).__name__
    words = "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
    negated = isinstance(node, p.Filter | p.TableFilter) and node.negate
    return f"{words}_not" if negated else words


def _name(function: object) -> str:
    if isinstance(function, TopicOf):
        return str(function)
    return getattr(function, "__name__", type(function).__name__)


def _text(plan: p.Plan, subs: tuple[SubTopology, ...]) -> str:
    lines = [f"Topology: {plan.application_id}"]
    for sub in subs:
        lines.append(f"  Sub-topology: {sub.id}")
        children = {node: [c for c in sub.nodes if node in c.parents] for node in sub.nodes}
        for node in sub.nodes:
            what = detail(node)
            lines.append(f"    {kind(node)}: {node.name}" + (f" ({what})" if what else ""))
            if children[node]:
                lines.append(f"      --> {', '.join(child.name for child in children[node])}")
        lines += [
            f"    store: {store.name} (changelog: {store.changelog_topic}; "
            f"key {store.key!r}, value {store.value!r})"
            for store in sub.stores
        ]
    lines += [f"  Global table: {table.name} ({detail(table)})" for table in plan.global_tables]
    return "\n".join(lines) + "\n"


def _mermaid(plan: p.Plan, subs: tuple[SubTopology, ...]) -> str:
    lines = ["flowchart TD"]
    topics: dict[str, str] = {}
    edges: list[str] = []

    def topic(name: str) -> str:
        return topics.setdefault(name, f"t{len(topics)}")

    for sub in subs:
        ids = {node: f"n{sub.id}_{index}" for index, node in enumerate(sub.nodes)}
        lines.append(f'  subgraph s{sub.id}["sub-topology {sub.id}"]')
        for node in sub.nodes:
            what = "" if isinstance(node, p.Source | p.Sink) else detail(node)
            label = "<br/>".join(_escape(part) for part in (kind(node), node.name, what) if part)
            lines.append(f'    {ids[node]}["{label}"]')
            edges += [f"  {ids[parent]} --> {ids[node]}" for parent in node.parents]
            if isinstance(node, p.Source):
                read = node.topics or (f"/{node.pattern.pattern if node.pattern else ''}/",)
                edges += [f"  {topic(name)} --> {ids[node]}" for name in read]
            elif isinstance(node, p.Sink):
                written = node.topic if isinstance(node.topic, str) else f"{_name(node.topic)}()"
                edges.append(f"  {ids[node]} --> {topic(written)}")
        lines.append("  end")
        for store in sub.stores:
            changelog = topic(store.changelog_topic)
            edges += [f"  {ids[node]} -.- {changelog}" for node in store.nodes]
        for table in plan.global_tables:
            joins = [n for n in sub.nodes if isinstance(n, p.GlobalJoin) and n.table == table.name]
            edges += [f"  {topic(table.topics[0])} -.-> {ids[node]}" for node in joins]
    lines += [f'  {id_}[("{_escape(name)}")]' for name, id_ in topics.items()]
    return "\n".join(lines + edges) + "\n"


def _escape(text: str) -> str:
    """Characters that mermaid would read as its own."""
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


def _json(plan: p.Plan, subs: tuple[SubTopology, ...]) -> str:
    document = {
        "application_id": plan.application_id,
        "sub_topologies": [_json_of(sub) for sub in subs],
        "global_tables": [
            {"name": table.name, "topic": table.topics[0], "detail": detail(table)}
            for table in plan.global_tables
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def _json_of(sub: SubTopology) -> dict[str, Any]:
    return {
        "id": sub.id,
        "nodes": [
            {
                "name": node.name,
                "operator": kind(node),
                "detail": detail(node),
                "parents": [parent.name for parent in node.parents],
            }
            for node in sub.nodes
        ],
        "stores": [
            {
                "name": store.name,
                "changelog": store.changelog_topic,
                "key": repr(store.key),
                "value": repr(store.value),
            }
            for store in sub.stores
        ],
        "source_topics": [t if isinstance(t, str) else f"/{t.pattern}/" for t in sub.source_topics],
        "sink_topics": list(sub.sink_topics),
        "internal_topics": [topic.name for topic in sub.internal_topics],
    }
