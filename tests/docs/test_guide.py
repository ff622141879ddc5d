"""The Python of the guide's pages: the blocks of a page run one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kafkalite.streams.expressions.catalog import INFIX, PREFIX, RULES

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
OF_FILES = ("quickstart.md", "testing.md")  # their blocks are files: test_pages_of_files.py
PAGES = sorted(page for page in GUIDE.glob("*.md") if page.name not in OF_FILES)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_there_are_pages() -> None:
    assert PAGES


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_blocks_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where a page keeps a broker's data
    text = page.read_text()
    names: dict[str, object] = {"__name__": "guide"}
    for block in BLOCK.finditer(text):
        before = text.count("\n", 0, block.start(1))  # so that an error names the page's line
        exec(compile("\n" * before + block[1], str(page), "exec"), names)


def test_every_function_of_expressions_stands_on_its_page() -> None:
    text = (GUIDE / "expressions.md").read_text()
    of_operators = {"boolean", "field", "select", "with_fields", "drop_fields", "rename_fields"}
    words = set(RULES) - set(INFIX) - set(PREFIX) - of_operators
    missing = {word for word in words if not re.search(rf"[`.]{re.escape(word)}\(", text)}
    assert not missing
    assert all(sign in text.replace("\\|", "|") for sign in INFIX.values())
