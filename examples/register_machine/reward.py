"""Pays a program by how much nearer to the goal it leaves the machine.

    nearer   the share of the way that is done: (distance before - distance after) / distance
             before. A distance is the fewest instructions to the goal, found by search. An end
             no nearer than the start gives 0, be it farther or a dead end.
    waste    -0.1 for each instruction run beyond those that the way done must take
    stray    -0.2 if the program stopped before the end of the text
    solved   1 if the goal is reached; shown, not paid

The reward is the sum of the first three, but at least -0.5. A text that does not begin with an
instruction that runs gets those -0.5 as well. So 1 is for a shortest program that reaches the goal,
with nothing beside it, and only a program that ends nearer to the goal than it began gets above 0.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from machine import Goal, State, distance, run

PROTOCOL = "retrograd-reward/1"
WASTE, STRAY, FLOOR = -0.1, -0.2, -0.5


def score(completion: str, start: State, wanted: Goal, before: int) -> dict[str, Any]:
    """The reply for an answer to the task from ``start``, ``before`` instructions from its goal."""
    outcome = run(completion, start)
    if outcome.ran == 0:
        parts = {"nearer": 0.0, "waste": 0.0, "stray": FLOOR, "solved": 0.0}
        return {"reward": FLOOR, "parts": parts}
    # Farther than this would be no nearer than the start, and need not be searched.
    after = distance(outcome.state, wanted, at_most=before - 1)
    done = 0 if after is None else before - after
    nearer = done / before
    waste = WASTE * (outcome.ran - done)
    stray = 0.0 if outcome.complete else STRAY
    parts = {
        "nearer": round(nearer, 4),
        "waste": round(waste, 4),
        "stray": stray,
        "solved": float(after == 0),
    }
    return {"reward": round(max(FLOOR, nearer + waste + stray), 4), "parts": parts}


def reply_to(message: dict[str, Any]) -> dict[str, Any]:
    if "protocol" in message:
        return {"protocol": PROTOCOL}
    if "_retrograd_batch_end" in message:
        return message
    task = message["metadata"]
    start, wanted = tuple(task["start"]), tuple(task["wanted"])
    return {
        **score(message["completion"], start, wanted, task["distance"]),
        "_retrograd_batch": message["_retrograd_batch"],
        "_retrograd_index": message["_retrograd_index"],
    }


def main() -> None:
    sys.stdin.reconfigure(encoding="utf-8")
    for line in sys.stdin:
        print(json.dumps(reply_to(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
