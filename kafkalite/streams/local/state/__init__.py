"""State of tasks: stores of rows, and what they are kept in.                              [P]

    store     rows as objects, what the changelog has not seen yet, views for users

Owns   nothing itself; imports of the rest of the engine come here.
"""

from kafkalite.streams.local.state.store import (
    NO_WINDOW,
    START,
    Bucket,
    Layout,
    StateStore,
    StoreView,
)

__all__ = ["NO_WINDOW", "START", "Bucket", "Layout", "StateStore", "StoreView"]
