"""Writes down what a broker answers: `python record.py HOST:PORT FILE`.

A line has the name of a conversation, the label of a question, and the answer.
`apache-kafka-3.9.2.jsonl` was made so, from a fresh broker of that release whose id is 1, with
group.initial.rebalance.delay.ms=0.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from asking import answers
from conversations import CONVERSATIONS


def main() -> None:
    host, _, port = sys.argv[1].rpartition(":")
    lines = [
        json.dumps([conversation.__name__, label, answer], ensure_ascii=False) + "\n"
        for conversation in CONVERSATIONS
        for label, answer in answers(host, int(port), conversation).items()
    ]
    Path(sys.argv[2]).write_text("".join(lines))
    print(f"{len(lines)} answers in {sys.argv[2]}")


if __name__ == "__main__":
    main()
