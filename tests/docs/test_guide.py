"""The Python of the pages: the blocks of a page run one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kafkalite import EmbeddedBroker
from kafkalite.streams.expressions.catalog import INFIX, PREFIX, RULES

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
OF_FILES = ("quickstart.md", "testing.md", "spark.md")  # their blocks are files, tested elsewhere
DOCS = GUIDE.parent
PAGES = sorted(page for page in DOCS.rglob("*.md") if page.name not in OF_FILES)
README = DOCS.parent / "README.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_there_are_pages() -> None:
    assert PAGES


@pytest.mark.slow
@pytest.mark.timeout(400)  # a page may start Spark
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_blocks_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where a page keeps a broker's data
    run_blocks(page, page.read_text(), {})


def test_the_blocks_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = []

    def record(*args: object) -> None:
        printed.append(args)
        raise KeyboardInterrupt  # the page's consumer reads until somebody stops it

    with EmbeddedBroker(tmp_path / "broker") as broker:
        text = README.read_text().replace("127.0.0.1:9092", broker.bootstrap_servers)
        with pytest.raises(KeyboardInterrupt):
            run_blocks(README, text, {"print": record})
    ((partition, values),) = printed
    assert (str(partition), list(values)) == ("orders-0", [b"shipped"])


def run_blocks(page: Path, text: str, given: dict[str, object]) -> None:
    names: dict[str, object] = {"__name__": "guide", **given}
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
