"""The program of the guide's page, with an interpreter whose environment is not activated."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guide" / "spark.md").read_text()
APP = re.compile(r"^```python\n# app\.py\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"^\$ venv/bin/python app\.py\n(.*?)^```", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.slow


@pytest.mark.timeout(300)
def test_the_program_of_the_page_runs_without_activation(tmp_path: Path) -> None:
    """No python3 on the PATH has kafkalite: Spark must be told which one has."""
    (app,), (shown,) = APP.findall(PAGE), SHOWN.findall(PAGE)
    (tmp_path / "app.py").write_text(app)
    own = Path(sys.executable).parent
    path = [part for part in os.environ["PATH"].split(os.pathsep) if Path(part) != own]
    environment = {
        n: v for n, v in os.environ.items() if n not in ("PYSPARK_PYTHON", "VIRTUAL_ENV")
    }
    environment |= {"PATH": os.pathsep.join(path), "PYTHONPATH": str(ROOT)}
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1"}
    ran = subprocess.run(
        [sys.executable, "app.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == shown
