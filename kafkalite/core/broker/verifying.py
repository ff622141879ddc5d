"""Questions to the transaction coordinators on other brokers, before a batch is appended.  [IO]

    produce, TxnOffsetCommit ──ask──> by coordinator ──one request under way──> VerifyTransactions

Owns   the questions that wait, WAITING_MAX of them for one broker, and the tasks.
Never  asks twice: after an error the client tries again.
Fails  with the error code in the answer, such as NETWORK_EXCEPTION, TIMEOUT_MS after the question.
Source KIP-890; apache/kafka `AddPartitionsToTxnManager`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from kafkalite.core.broker.reaching import Host, OtherBrokers
from kafkalite.core.protocol.peers import TransactionToVerify, VerifyTransactionsRequest
from kafkalite.core.transactions.verification import Verification
from kafkalite.errors import ErrorCode, KafkaliteError

log: Final = logging.getLogger(__name__)

LANE: Final = "verify"
WAITING_MAX: Final = 10_000
QUESTIONS_PER_REQUEST: Final = 500
TIMEOUT_MS: Final = 2_000


class ClusterVerifier:
    """Asks other brokers."""

    def __init__(self, host: Host, others: OtherBrokers) -> None:
        self._host = host
        self._others = others
        self._waiting: dict[int, list[Verification]] = {}  # by broker
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._is_closed = False

    def ask(self, verification: Verification, node_id: int) -> None:
        """Completes the verification's answer with what the broker says, or could not."""
        waiting = self._waiting.setdefault(node_id, [])
        if self._is_closed or len(waiting) >= WAITING_MAX:
            verification.answer.complete(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        waiting.append(verification)
        if node_id not in self._tasks:
            self._tasks[node_id] = asyncio.get_running_loop().create_task(self._run(node_id))

    async def close(self) -> None:
        """Asks nothing any more."""
        self._is_closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, node_id: int) -> None:
        """Asks until nothing waits."""
        waiting = self._waiting[node_id]
        try:
            while waiting:
                asked = waiting[:QUESTIONS_PER_REQUEST]
                del waiting[:QUESTIONS_PER_REQUEST]
                codes = await self._codes(node_id, asked)
                for verification, code in zip(asked, codes, strict=True):
                    verification.answer.complete(code)
        finally:
            del self._tasks[node_id]

    async def _codes(self, node_id: int, asked: list[Verification]) -> list[ErrorCode]:
        code = ErrorCode.BROKER_NOT_AVAILABLE
        try:
            if (channel := self._others.channel(node_id, LANE)) is not None:
                response = await channel.ask(_request(asked), TIMEOUT_MS)
                if len(response.transactions) == len(asked):
                    return [each.error_code for each in response.transactions]
                code = ErrorCode.UNKNOWN_SERVER_ERROR
        except KafkaliteError as error:
            self._host.note(f"broker {node_id} verifies no transactions: {error}")
            code = ErrorCode.NETWORK_EXCEPTION
        except Exception:
            log.exception("transactions that broker %d is to verify", node_id)
            code = ErrorCode.UNKNOWN_SERVER_ERROR
        return [code] * len(asked)


def _request(asked: list[Verification]) -> VerifyTransactionsRequest:
    return VerifyTransactionsRequest(
        tuple(
            TransactionToVerify(each.transactional_id, *each.identity, *each.topic_partition)
            for each in asked
        )
    )
