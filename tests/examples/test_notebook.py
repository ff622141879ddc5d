"""The notebook runs from the top, and its last table has every ride."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
SECONDS_MAX = 100


def test_the_notebook_runs_from_the_top() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=SECONDS_MAX, kernel_name="python3")
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    (picture,) = [o.data["image/svg+xml"] for o in outputs if "image/svg+xml" in o.get("data", {})]
    assert "long-rides" in picture
    (shown,) = [o.data["text/html"] for o in outputs if "text/html" in o.get("data", {})]
    rides = re.findall(r"<tr><td>\w+<td>([\d,]+)<td>", shown)
    assert sum(int(text.replace(",", "")) for text in rides) == 3_000
    assert not [o for o in outputs if o.get("name") == "stderr"]
