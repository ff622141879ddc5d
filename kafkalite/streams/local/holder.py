"""The engine that has an application's state: the local one, or another for a while.        [P]

The claim in force in the topology log names the holder. Without a holder the state belongs to the
local engine: to the changelogs and to the offsets of the group. Each stay on another engine has an
id of its own, which its checkpoint has as well, so that an old checkpoint is never taken for the
state.

    local ──► spark ──► spark, leaving ──► local
              one claim each; a move that was interrupted goes on where it was

Owns   the form of a holder in a claim, and the words of a refusal.
Fails  with ValueError for a document that is no holder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

SPARK: Final = "spark"


@dataclass(frozen=True, slots=True)
class Holder:
    """Another engine that has the state, in `checkpoint`, for one stay."""

    engine: str
    checkpoint: str
    stay: str
    is_leaving: bool = False  # the state is on its way back

    def encode(self) -> dict[str, Any]:
        """The holder as JSON can write it."""
        return asdict(self)

    @staticmethod
    def decode(found: Mapping[str, Any] | None) -> Holder | None:
        """The holder that `encode` wrote; None: the local engine."""
        try:
            return None if found is None else Holder(**found)
        except TypeError as error:
            raise ValueError(f"no holder: {error}") from None

    def leaving(self) -> Holder:
        """The same stay, while its state is written back."""
        return replace(self, is_leaving=True)

    def staying(self) -> Holder:
        """The same stay, after the state was not written back."""
        return replace(self, is_leaving=False)


def elsewhere(application_id: str, holder: Holder | None, asking: Holder | None) -> str:
    """Why `asking` may not run the application while `holder` has its state; "": it may."""
    if holder == asking:
        return ""
    if holder is None:
        return (
            f"{application_id}: the local engine holds the state: `kafkalite-streams run FILE.py "
            f"--engine spark --checkpoint DIR --from local` moves it"
        )
    place = holder.checkpoint
    export = f"`kafkalite-streams export-state FILE.py --checkpoint {place}`"
    if holder.is_leaving:
        return (
            f"{application_id}: the state is on its way from Spark to the local engine: run "
            f"{export} again"
        )
    if asking is None:
        return f"{application_id}: Spark holds the state, in {place}: {export} moves it back"
    return (
        f"{application_id}: Spark holds the state, in another checkpoint than "
        f"{asking.checkpoint}: run with --checkpoint {place}, or move the state back with {export}"
    )
