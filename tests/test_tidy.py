"""The house rules of docs/ARCHITECTURE.md, kept by a test: floors, purity, sizes, docstrings."""

from __future__ import annotations

import ast
import gc
import hashlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from kafkalite.compaction.retain import Cleaned
from kafkalite.core.log.values import Mark
from kafkalite.core.protocol import records_pure
from kafkalite.serde import avro_plan, column_values, json_kinds
from kafkalite.serde.avro_plan import FAULTS, WRITE_FAULTS, Column, Kind, Op, Plan, Union
from kafkalite.streams.local import ranks
from kafkalite.streams.local.operators import folding, matching, references
from kafkalite.streams.local.spans import native as packed_spans
from kafkalite.streams.local.state import row_table, segment_rows

pytestmark = pytest.mark.xdist_group("tidy")  # one worker parses all sources, once

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "kafkalite").rglob("*.py"))
BESIDE = sorted(
    path for folder in ("tests", "bench", "examples") for path in (ROOT / folder).rglob("*.py")
)
NATIVE = sorted(p for kind in ("pyx", "pxd", "h") for p in (ROOT / "kafkalite").rglob(f"*.{kind}"))
STUBS = sorted((ROOT / "kafkalite").rglob("*.pyi"))
COMPACTION = ROOT / "kafkalite" / "compaction"
SERDE = ROOT / "kafkalite" / "serde"
OPERATORS = ROOT / "kafkalite" / "streams" / "local" / "operators"
MATCHING = OPERATORS / "_matching.pyi"
REFERENCES = OPERATORS / "_references.pyi"
SPANS = OPERATORS.parent / "spans"
ROW_TABLE = ROOT / "kafkalite" / "streams" / "local" / "state" / "_row_table.pyi"
MERGING = ROOT / "kafkalite" / "streams" / "local" / "_merging.pyi"
SEGMENT_ROWS = ROW_TABLE.with_name("_segment_rows.pyi")
NATIVE_INTERFACE = (6, "dc1a749aef42")  # its number; digest of `native_interface`
FOLDING_INTERFACE = (8, "c1bd6706e496")  # its number; digest of `folding_interface`
MATCHING_INTERFACE = (3, "974b3224c9cc")  # the same of `matching_interface`
REFERENCES_INTERFACE = (1, "88d0114f44c4")  # its number; digest of its stub
MERGING_INTERFACE = (1, "d7beace5e851")  # its number; digest of its stub
SEGMENT_ROWS_INTERFACE = (1, "1a981725ea7d")  # its number; digest of its stub
ROW_TABLE_INTERFACE = (2, "883a742b3ae8")  # its number; digest of its stub
SPANS_INTERFACE = (1, "94c17effff0b")  # the same of `spans_interface`
AVRO_INTERFACE = (9, "c63183da09e4")  # its number; digest of `avro_interface`
JSON_INTERFACE = (3, "2b3a3365a401")  # its number; digest of `json_interface`
SKIPS = re.compile(r"(pytest|mark|unittest)\.(skip|skipif|xfail|importorskip|SkipTest)\b")
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70

# A room is a folder, or a module where it is named here; the longest name that begins a module's is
# its room. Imports run downwards, or sideways within one floor.
FLOORS = {
    "kafkalite": 9, "kafkalite.cli": 9,
    "kafkalite.node": 8, "kafkalite.ports": 8, "kafkalite.belonging": 8,
    "kafkalite.testing": 8, "kafkalite.spark": 8,
    "kafkalite.embedded": 1, "kafkalite.embedded_zookeeper": 1, "kafkalite.embedded_cluster": 1,
    "kafkalite.java": 0,
    "kafkalite.streams": 7, "kafkalite.warehouse": 7,
    "kafkalite.compaction.runner": 7, "kafkalite.monitoring": 7,
    "kafkalite.serde.registry_log": 7, "kafkalite.serde.registry_http": 7,
    "kafkalite.serde.registry_metrics": 7, "kafkalite.serde.registry_server": 7,
    "kafkalite.core.server": 6, "kafkalite.core.handlers": 6,
    "kafkalite.core.broker": 5, "kafkalite.core.transactions": 4, "kafkalite.core.groups": 4,
    "kafkalite.columnar": 4, "kafkalite.core.coordinators": 4,
    "kafkalite.core.replicas": 3, "kafkalite.core.cluster": 3,
    "kafkalite.clients": 3, "kafkalite.compaction": 3,
    "kafkalite.core.log": 2, "kafkalite.core.peers": 2,
    "kafkalite.core.config": 1, "kafkalite.core.protocol": 1,
    "kafkalite.serde": 1, "kafkalite.core": 0, "kafkalite.errors": 0,
}  # fmt: skip

IMPURE = {
    "asyncio", "fcntl", "kazoo", "logging", "os", "pathlib", "random", "select", "selectors",
    "shutil", "signal", "socket", "subprocess", "tempfile", "threading", "time",
}  # fmt: skip
# What a room is given, it does not take: time, randomness, threads and sockets come from the
# composition roots, which are listed first. The rest are exceptions: the list may only shrink.
CLOCKS = {f"time.{name}" for name in ("time", "time_ns", "monotonic", "perf_counter", "sleep")}
TAKING = {"urandom", "uuid4", "Thread", "ThreadPoolExecutor", "to_thread", "socket.socket"}
ROOTS = re.compile(
    r"kafkalite\.(cli(\..*)?|node|ports|embedded(_zookeeper|_cluster)?|clients\.sync\.loop_thread|testing\.simulation"
    r"|spark\.sink\.writers)"  # which Spark makes
)
TAKERS = {
    "kafkalite.clients.ports",  # the world of clients
    "kafkalite.core.log.storage",
    "kafkalite.core.server.network",  # the machine's own
    "kafkalite.core.server.outbox",  # a second descriptor of the connection that it was given
    "kafkalite.serde.registry_http",
    "kafkalite.serde.registry_log",
    "kafkalite.serde.registry_server",
    "kafkalite.streams.local.worker",
}
ABOVE_CORE = re.compile(r"kafkalite\.(compaction|streams|serde|spark|warehouse)")
KIND = re.compile(r"\[(P|D|IO)\]")


@pytest.fixture(autouse=True, scope="module")
def nothing_is_garbage() -> Iterator[None]:
    """Half a million nodes stay until the end: to look at them again and again is most of the work
    of parsing."""
    gc.disable()
    yield
    gc.enable()


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


KNOWN = {dotted(path) for path in MODULES}


def floor(module: str) -> int:
    room = module
    while room not in FLOORS:
        room = room.rpartition(".")[0]
    return FLOORS[room]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree(path)))


@cache
def kind(path: Path) -> str:
    found = KIND.search(ast.get_docstring(tree(path)) or "")
    return found.group(1) if found else ""


def is_pure(path: Path) -> bool:
    return kind(path) in ("P", "D")


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


@cache
def imports(path: Path) -> frozenset[str]:
    """The modules that run when `path` does: all imports but those for the type checker alone."""
    found: set[str] = set()
    todo: list[ast.AST] = [tree(path)]
    while todo:
        node = todo.pop()
        if is_type_checking(node):
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found.update(name if name in KNOWN else node.module for name in names)
        todo.extend(ast.iter_child_nodes(node))
    return frozenset(found)


def test_modules_say_what_they_are_and_of_which_kind() -> None:
    silent = [dotted(path) for path in MODULES if not ast.get_docstring(tree(path))]
    assert not silent, f"no docstring: {', '.join(silent)}"
    no_kind = [dotted(path) for path in MODULES if not kind(path)]
    assert not no_kind, f"the docstring names no kind, [P], [D] or [IO]: {', '.join(no_kind)}"


def test_imports_run_downwards() -> None:
    upwards = [
        f"{dotted(path)} (floor {floor(dotted(path))}) imports {name} (floor {floor(name)})"
        for path in MODULES
        for name in sorted(imports(path) & KNOWN)
        if floor(name) > floor(dotted(path))
    ]
    assert not upwards, "\n".join(upwards)


def test_pure_modules_touch_no_clock_socket_or_disk() -> None:
    impure = []
    for path in filter(is_pure, MODULES):
        allowed = {"random"} if "Random" in path.read_text() else set()  # a Random is handed in
        found = {name.split(".")[0] for name in imports(path)} & (IMPURE - allowed)
        impure += [f"{dotted(path)} is pure and imports {name}" for name in sorted(found)]
    assert not impure, "\n".join(impure)


def test_below_the_rim_nothing_in_core_imports_the_rim() -> None:
    """A log needs the `Storage` port, for instance, not the module that opens files."""
    rim = {dotted(path) for path in MODULES if kind(path) == "IO"}
    below = [path for path in MODULES if re.match(r"kafkalite\.(core|compaction)", dotted(path))]
    climbers = [
        f"{dotted(path)} [{kind(path)}] imports {name}"
        for path in below
        if kind(path) != "IO"
        for name in sorted(imports(path) & rim)
    ]
    assert not climbers, "\n".join(climbers)


def test_files_fit_a_reader() -> None:
    """Modules, their stubs and native sources, tests, benchmarks and examples."""
    lines = {path: path.read_text().count("\n") for path in MODULES + BESIDE + NATIVE + STUBS}
    long = [f"{path}: {count} lines" for path, count in lines.items() if count > FILE_LINES_MAX]
    assert not long, "\n".join(long)


def test_functions_fit_a_reader() -> None:
    sizes = [
        (f"{dotted(path)}.{node.name}", (node.end_lineno or 0) - node.lineno + 1)
        for path in MODULES
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    long = [f"{name}: {lines} lines" for name, lines in sizes if lines > FUNCTION_LINES_MAX]
    assert not long, "\n".join(long)


def native_interface() -> str:
    """What native modules and the Python beside them agree on: the stubs, the signatures that they
    refer to, the records that the cleaner reads and makes, the memory that it shares."""
    own = {SERDE, OPERATORS, MERGING, SPANS, ROW_TABLE, SEGMENT_ROWS}
    stubs = [path for path in STUBS if not own & {path, *path.parents}]
    agreed = [path.read_text() for path in stubs + sorted(COMPACTION.glob("*.pxd"))]
    agreed += [
        f"{node.name}({ast.unparse(node.args)})"
        for twin in (COMPACTION / "cleaning_pure.py", Path(records_pure.__file__))
        for node in ast.walk(tree(twin))
        if isinstance(node, ast.FunctionDef) and not re.match("_[^_]", node.name)
    ]
    agreed += [field for record in (Cleaned, Mark) for field in record.__annotations__]
    return "\n".join(agreed)


def folding_interface() -> str:
    """What the native modules that fold, and the Python beside them, agree on: stubs, and what
    the modules share."""
    files = sorted({*OPERATORS.glob("*.pyi"), *OPERATORS.glob("*.pxd")} - {MATCHING, REFERENCES})
    files.sort(key=lambda path: path.suffix, reverse=True)
    return "\n".join(path.read_text() for path in files)


def spans_interface() -> str:
    """What the native modules of sessions and sliding windows, and the Python beside them, agree
    on: stubs, and what the modules share."""
    files = [*sorted(SPANS.glob("*.pyi")), *sorted(SPANS.glob("*.pxd")), OPERATORS / "_cells.pxd"]
    return "\n".join(path.read_text() for path in files)


def matching_interface() -> str:
    """What the native loop of joins and the Python around it agree on: the stub, the rows as they
    lie in memory, and the names that the loop uses of what it is given."""
    loop = MATCHING.with_suffix(".pyx").read_text()
    names = re.findall(r"\b(?:join|store|segment)\.(\w+)", loop)
    rows = SEGMENT_ROWS.with_suffix(".pxd").read_text()
    return "\n".join([MATCHING.read_text(), rows, *sorted(set(names))])


def avro_interface() -> str:
    """What Avro's native modules and the Python beside them agree on: the stubs, what the modules
    share, and the numbers, faults and columns of a plan."""
    agreed = [
        path.read_text()
        for of in ("_avro*.pyi", "_vectors.pyi", "_avro*.pxd")
        for path in sorted(SERDE.glob(of))
    ]
    agreed += [f"{number!r}" for numbers in (Op, Union, Kind) for number in numbers]
    agreed += [*FAULTS, *WRITE_FAULTS, *Column.__annotations__, *Plan.__annotations__]
    return "\n".join(agreed)


def json_interface() -> str:
    """What JSON's and MessagePack's native modules and the Python beside them agree on: the stubs,
    the kinds, and the columns as they are read and written."""
    stubs = (path for of in ("_json*.pyi", "_msgpack*.pyi") for path in sorted(SERDE.glob(of)))
    agreed = [path.read_text() for path in stubs]
    agreed += [str(column_values.Read), str(column_values.Source)]
    return "\n".join([*agreed, *(kind.name for kind in json_kinds.Kind)])


def takes(path: Path) -> set[str]:
    """The clocks that a module reads, and the calls by which it takes the rest for itself."""
    calls = [node for node in nodes(path) if isinstance(node, ast.Call)]
    named = [(ast.unparse(call.func), call.args or call.keywords) for call in calls]
    taken = {name for name, _ in named if {name, name.rpartition(".")[2]} & TAKING}
    unseeded = {name for name, given in named if name.endswith("Random") and not given}
    names = {
        f"{node.value.id}.{node.attr}"
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    return taken | unseeded | names & CLOCKS


def test_no_room_takes_time_randomness_threads_or_sockets_for_itself() -> None:
    takers = {dotted(path) for path in MODULES if takes(path) and not ROOTS.fullmatch(dotted(path))}
    assert takers == TAKERS, "who takes what is not given; the list of exceptions may only shrink"


def test_no_modules_import_one_another() -> None:
    below = {dotted(path): imports(path) & KNOWN for path in MODULES}
    while leaves := {
        module for module, names in below.items() if not names & set(below) - {module}
    }:
        below = {module: names for module, names in below.items() if module not in leaves}
    assert not below, f"a circle runs through some of {sorted(below)}"


def test_pure_modules_import_nothing_less_pure() -> None:
    kinds = {dotted(path): kind(path) for path in MODULES}
    allowed = {"P": ("P",), "D": ("P", "D")}
    less_pure = [
        f"{dotted(path)} [{kind(path)}] imports {name} [{kinds[name]}]"
        for path in filter(is_pure, MODULES)
        for name in sorted(imports(path) & KNOWN)
        if kinds[name] not in allowed[kind(path)]
    ]
    assert not less_pure, "\n".join(less_pure)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def test_another_native_interface_has_another_number() -> None:
    """So that what was built before is not loaded: see `records_pure.INTERFACE`."""
    found = (records_pure.INTERFACE, digest(native_interface()))
    assert found == NATIVE_INTERFACE, "raise it here, in records_pure.py and in _interface.pxd"
    found = (avro_plan.INTERFACE, digest(avro_interface()))
    assert found == AVRO_INTERFACE, "raise it here, in avro_plan.py and in _avro_columns.pxd"
    found = (json_kinds.INTERFACE, digest(json_interface()))
    where = "here, in json_kinds.py, _json_*.pyx and _msgpack_*.pyx"
    assert found == JSON_INTERFACE, f"raise it {where}"
    found = (folding.INTERFACE, digest(folding_interface()))
    where = "here, in folding.py, _folding.pyx and _updates.pyx"
    assert found == FOLDING_INTERFACE, f"raise it {where}"
    found = (matching.INTERFACE, digest(matching_interface()))
    where = "here, in matching.py and in _matching.pyx"
    assert found == MATCHING_INTERFACE, f"raise it {where}"
    found = (references.INTERFACE, digest(REFERENCES.read_text()))
    where = "here, in references.py and in _references.pyx"
    assert found == REFERENCES_INTERFACE, f"raise it {where}"
    found = (packed_spans.INTERFACE, digest(spans_interface()))
    assert found == SPANS_INTERFACE, "raise it here, in native.py and in the .pyx beside it"
    found = (row_table.INTERFACE, digest(ROW_TABLE.read_text()))
    assert found == ROW_TABLE_INTERFACE, "raise it here, in row_table.py and in _row_table.pyx"
    found = (ranks.INTERFACE, digest(MERGING.read_text()))
    assert found == MERGING_INTERFACE, "raise it here, in ranks.py and in _merging.pyx"
    found = (segment_rows.INTERFACE, digest(SEGMENT_ROWS.read_text()))
    where = "here, in segment_rows.py and in _segment_rows.pyx"
    assert found == SEGMENT_ROWS_INTERFACE, f"raise it {where}"


def test_core_knows_nothing_of_what_stands_on_it() -> None:
    above = [
        f"{dotted(path)} imports {name}"
        for path in MODULES
        if dotted(path).startswith("kafkalite.core")
        for name in sorted(filter(ABOVE_CORE.match, imports(path)))
    ]
    assert not above, "\n".join(above)


def test_machines_never_import_one_another() -> None:
    machines = ("replication", "controller", "transactions", "purgatory")
    for name in machines:
        path = ROOT / "kafkalite" / "core" / f"{name}.py"
        if path.exists():
            others = {f"kafkalite.core.{m}" for m in machines if m != name} & imports(path)
            assert not others, f"{name} imports {sorted(others)}"


def test_only_one_module_opens_kazoo() -> None:
    users = [dotted(p) for p in MODULES if any(n.split(".")[0] == "kazoo" for n in imports(p))]
    assert users == ["kafkalite.core.cluster.zookeeper"]


def test_what_may_skip_is_named_in_the_known_gaps() -> None:
    told = (ROOT / "docs" / "KNOWN_GAPS.md").read_text()
    silent = [
        f"{path.relative_to(ROOT)} may skip: line {number}"
        for path in BESIDE
        if f"`{path.relative_to(ROOT)}`" not in told
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if SKIPS.search(line)
    ]
    assert not silent, "\n".join(silent)


def test_several_processes_keep_the_groups_of_tests(request: pytest.FixtureRequest) -> None:
    """pytest 9.2 took its name from a test's group, and each process started a Kafka of its own."""
    if getattr(request.config.option, "loadgroup", False):
        assert request.node.nodeid.endswith("@tidy")
