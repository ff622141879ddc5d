"""What is in a wheel: all modules, the native codecs, the license, and nothing of the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.deep]

ROOT = Path(__file__).parents[2]
NATIVE = {
    "kafkalite/core/protocol/": {
        "_records_read",
        "_records_write",
        "_int64s",
        "_memory",
        "_partitions",
        "_records_forms",
        "_requests",
        "_spans",
    },
    "kafkalite/compaction/": {"_batch", "_output", "_offset_map", "_loops"},
    "kafkalite/serde/": {
        "_avro_columns",
        "_avro_read",
        "_avro_rows",
        "_avro_values",
        "_avro_write",
        "_json_read",
        "_json_write",
        "_msgpack_read",
        "_msgpack_write",
        "_vectors",
    },
    "kafkalite/streams/local/": {"_merging"},
    "kafkalite/streams/local/operators/": {"_folding", "_matching", "_references", "_updates"},
    "kafkalite/streams/local/spans/": {"_folds", "_log", "_table", "_windows"},
    "kafkalite/streams/local/state/": {"_row_table", "_segment_rows"},
}


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The files in a wheel of a copy of the sources; the C that Cython made of them is not made
    again."""
    place = tmp_path_factory.mktemp("wheel")
    copy = place / "sources"
    for folder in ("kafkalite", "pyspark_kafkalite"):
        left = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / folder, copy / folder, ignore=left)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, copy)
    # With the setuptools and Cython that are installed here: no test asks the network.
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--wheel-dir", str(place), str(copy)],
        capture_output=True,
        text=True,
        env=os.environ | {"CFLAGS": "-O0"},  # nobody runs what is built here
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = place.glob("*.whl")
    return zipfile.ZipFile(wheel).namelist()


@pytest.mark.timeout(600)
def test_a_wheel_has_every_module_the_native_ones_and_the_license(names: list[str]) -> None:
    sources = {
        path.relative_to(ROOT).as_posix()
        for folder in ("kafkalite", "pyspark_kafkalite")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert sources <= set(names)
    assert "kafkalite/py.typed" in names
    for folder, modules in NATIVE.items():
        files = [name.removeprefix(folder) for name in names if name.startswith(folder)]
        built = {name.partition(".")[0] for name in files
                 if name.endswith(".so") and "/" not in name}  # fmt: skip
        assert built == modules
    assert [name for name in names if name.endswith("/licenses/LICENSE")]
    packages = {name.partition("/")[0] for name in names}
    assert {name for name in packages if not name.endswith(".dist-info")} == {
        "kafkalite", "pyspark_kafkalite"
    }  # fmt: skip
