"""Pages of the guide whose blocks are files: pytest runs them. And the site is built."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide"
FILE = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = {"testing.md": 5, "quickstart.md": 1}  # and their tests

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("page", PAGES)
def test_the_files_of_a_page_pass(page: str, tmp_path: Path) -> None:
    files = tmp_path / "page"
    files.mkdir()
    for name, text in FILE.findall((GUIDE / page).read_text()):
        (files / name).write_text(text)
    # With a folder of its own it does not spend minutes on the removal of earlier runs' folders.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["--basetemp", str(tmp_path / "base"), str(files)]
    done = subprocess.run(
        command, cwd=files, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"^{PAGES[page]} passed", done.stdout, re.MULTILINE), done.stdout


def test_the_site_has_no_broken_link_and_no_page_beside_its_contents(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    reference = (tmp_path / "reference" / "streams" / "index.html").read_text()
    assert "group_by_key" in reference
