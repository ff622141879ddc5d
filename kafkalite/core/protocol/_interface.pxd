# cython: language_level=3
"""Whether a native module, of records or of the cleaner, fits the Python sources beside it.   [P]

All there is to it is here: no module belongs to this file.
"""

cdef enum:
    INTERFACE_BUILT = 6  # raised together with records_pure.INTERFACE


cdef inline int check_interface(object interface) except -1:
    """A module built from other sources than those beside it is not loaded: ImportError."""
    if interface != INTERFACE_BUILT:
        raise ImportError(f"built for interface {INTERFACE_BUILT}, the sources have {interface}")
    return 0
