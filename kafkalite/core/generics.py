"""Type variables of the public classes: a parameter that is not given counts as `Any`.     [P]

    Stream                Stream[Any, Any]
    Stream[str, Order]    keys are texts, values are orders

So code that does not care writes `Stream`, and passes `mypy --strict`. Defaults of type variables
are PEP 696. Python has them from 3.13 on; type checkers know `typing_extensions` of themselves, and
nothing is installed for it.

Owns   nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    K = TypeVar("K", default=Any)  # a key
    V = TypeVar("V", default=Any)  # a value
    R = TypeVar("R", default=Any)  # a function's result
    T = TypeVar("T", default=Any)
    K_co = TypeVar("K_co", covariant=True, default=Any)
    V_co = TypeVar("V_co", covariant=True, default=Any)
    R_co = TypeVar("R_co", covariant=True, default=Any)
    V_contra = TypeVar("V_contra", contravariant=True, default=Any)
    T_contra = TypeVar("T_contra", contravariant=True, default=Any)
else:
    from typing import TypeVar

    K, V, R, T = map(TypeVar, "KVRT")
    K_co = TypeVar("K_co", covariant=True)
    V_co = TypeVar("V_co", covariant=True)
    R_co = TypeVar("R_co", covariant=True)
    V_contra = TypeVar("V_contra", contravariant=True)
    T_contra = TypeVar("T_contra", contravariant=True)
