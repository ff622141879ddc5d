"""Writes every picture into this folder.                                                 [IO]"""

from pathlib import Path

from pictures import PICTURES

for name, draw in PICTURES.items():
    (Path(__file__).parent / f"{name}.svg").write_text(draw())
