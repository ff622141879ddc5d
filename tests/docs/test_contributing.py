"""The recipes of CONTRIBUTING.md name files that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = re.compile(r"`((?:kafkalite|tests|docs)/[\w./-]+|[A-Z]+\.md)`")


def test_the_files_of_the_recipes_exist() -> None:
    recipes = (ROOT / "CONTRIBUTING.md").read_text().partition("## Recipes")[2]
    assert recipes.count("\n### ") == 4
    named = set(FILE.findall(recipes))
    assert len(named) > 40
    assert not [name for name in sorted(named) if not (ROOT / name).exists()]
