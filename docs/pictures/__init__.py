"""Pictures of windows, time and joins for the guide, drawn from the output of the test driver. [IO]

    cd docs && python -m pictures      # writes the SVG files beside this module

Each picture runs a topology, and draws the records that went in and the results that came out. No
result is drawn by hand, so a picture cannot differ from the engine. The SVG files are in the
repository, because pages are also read there; a test compares them with new ones.

Owns   the list of pictures.
Never  draws a random or machine-dependent number: the same code gives the same bytes.
"""

from collections.abc import Callable, Mapping
from typing import Final

from pictures import joins, times, windows

PICTURES: Final[Mapping[str, Callable[[], str]]] = {
    "tumbling": windows.tumbling_windows,
    "hopping": windows.hopping_windows,
    "sliding": windows.sliding_windows,
    "session": windows.session_windows,
    "stream-time": times.stream_time,
    "grace": times.grace,
    "stream-join": joins.stream_join,
    "as-of-join": joins.as_of_join,
}
