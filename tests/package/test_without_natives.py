"""A tree in which nothing native was built: every module is imported, and a topology runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "kafkalite"
PROGRAM = """
import importlib, pkgutil, sys
from importlib.abc import MetaPathFinder

NATIVE = set(sys.argv[1].split(","))


class Nowhere(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in NATIVE:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Nowhere())
import kafkalite

for module in pkgutil.walk_packages(kafkalite.__path__, "kafkalite."):
    if module.name not in NATIVE and not module.name.endswith("__main__"):
        importlib.import_module(module.name)

from kafkalite.streams import Streams, TopologyTestDriver, count, json, max_, string, tumbling

app = Streams("pure", key=string(), value=json())
left, right = app.stream("left"), app.stream("right")
left.join(right, lambda one, other: one + other, within="10s").to("pairs")
left.group_by_key().window(tumbling("1m")).aggregate(n=count(), most=max_()).to_stream().to("rows")
with TopologyTestDriver(app) as driver:
    driver.pipe("left", 1, key="a", timestamp=1)
    driver.pipe("right", 2, key="a", timestamp=2)
    print([record.value for record in driver.read("pairs") + driver.read("rows")])
"""


@pytest.mark.slow
def test_a_tree_without_natives_imports_and_runs() -> None:
    built = sorted(PACKAGE.rglob("_*.pyx"))
    names = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in built]
    assert len(names) > 10
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, ",".join(names)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[3, {'n': 1, 'most': 1}]"
