"""The life of a client: started, used and closed by `async with`.                         [P]"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Lifetime(ABC):
    """An async context manager: entering starts it, leaving closes it, however it is left."""

    @abstractmethod
    async def start(self) -> None:
        """Makes it ready for use."""

    @abstractmethod
    async def close(self) -> None:
        """Lets go of all it holds."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
