"""Sessions and sliding windows in native code: windows packed in memory of their own.        [P]

    native      the choice: which aggregates, made once for each operator
    _parts      partials as numbers of the machine, or as objects
    _log        rows on their way out, side by side
    _windows    keys, windows, parts, and a heap of their ends
    _table      what becomes of windows: changes, closing, the changelog, restarts
    _folds      records into windows
    store       the store around a table
    operator    what all operators of sessions and sliding windows share
    packed      the operator around a table

The twins keep windows as objects: operators/spans, sessions and sliding, state/spans.

Owns   nothing itself.
"""
