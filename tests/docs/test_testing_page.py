"""The guide's page on testing: its blocks are files, and pytest runs them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "testing.md"
FILE = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_files_of_the_page_pass(tmp_path: Path) -> None:
    for name, text in FILE.findall(PAGE.read_text()):
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^5 passed", done.stdout, re.MULTILINE), done.stdout
