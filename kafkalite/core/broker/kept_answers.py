"""Large answers kept as they were encoded, for the next client that asks the same.         [P]

An answer about very many partitions takes tens of milliseconds to make and encode, and clients that
lose their connections together ask for it together.

Owns   the bytes of answers about one state of the cluster: as many as `bytes_max`, then the oldest
       go. Once the state is another, all go. The answers that are being made: one at a time for
       each request.
Never  keeps an answer with errors, which are counted from its message.
Fails  never.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Set
from typing import Any, Final

from kafkalite.core.broker.metrics import errors_in
from kafkalite.core.cluster.image import ClusterImage
from kafkalite.core.pending import Encoded
from kafkalite.core.types import TopicPartition

BYTES_MAX: Final = 16 << 20


class Making:
    """An answer that is being made; slices of others that ask the same wait for its end."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[Any], None]] = []

    def add_done_callback(self, call: Callable[[Any], None]) -> None:
        """Calls `call` once the answer is made, or is given up."""
        self._waiting.append(call)

    def done(self) -> None:
        """It is."""
        for call in self._waiting:
            call(self)


class KeptAnswers:
    """Answers by their requests, as long as image, controller and offline partitions stay what they
    are."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self.state = 0  # the number of the state that answers are kept about
        self._bytes_max = bytes_max
        self._bytes = 0
        self._answers: dict[Hashable, bytes] = {}
        self._makings: dict[Hashable, Making] = {}
        self._image: ClusterImage | None = None
        self._offline: frozenset[TopicPartition] = frozenset()
        self._controller_id = -1

    def __len__(self) -> int:
        return len(self._answers)

    def set_state(
        self, image: ClusterImage, offline: Set[TopicPartition], controller_id: int
    ) -> None:
        """The cluster as it is now: answers about another state are forgotten."""
        is_controlled = controller_id == self._controller_id
        if image is not self._image or self._offline != offline or not is_controlled:
            self._image, self._offline = image, frozenset(offline)
            self._controller_id = controller_id
            self.clear()

    def clear(self) -> None:
        """Forgets all answers: the state that they describe is over."""
        self.state += 1
        self._answers.clear()
        self._bytes = 0

    def find(self, asked: Hashable) -> Encoded | None:
        """The answer to the request `asked`, None where it is not kept."""
        if not self._answers:
            return None
        data = self._answers.get(asked)
        return None if data is None else Encoded(None, data)

    def being_made(self, asked: Hashable) -> Making | None:
        """The making of the same answer that is under way, if one is."""
        return self._makings.get(asked)

    def begin(self, asked: Hashable) -> None:
        """The caller makes the answer, and calls `end` however that ends."""
        self._makings[asked] = Making()

    def end(self, asked: Hashable) -> None:
        """Lets those go on that wait for the answer: it is kept, or they make it themselves."""
        self._makings.pop(asked).done()

    def keep(self, asked: Hashable, answer: Any, encode: Callable[[Any], bytes]) -> Encoded:
        """The answer, encoded, and kept if it has no errors."""
        data, errors = encode(answer), errors_in(answer)
        if not errors and len(data) <= self._bytes_max:
            self._answers[asked] = data
            self._bytes += len(data)
            while self._bytes > self._bytes_max:
                self._bytes -= len(self._answers.pop(next(iter(self._answers))))
        return Encoded(answer, data, errors)
