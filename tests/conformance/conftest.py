"""The tests here share modules that are no tests: their folder is on the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
