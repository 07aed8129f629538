"""Scores "answer with the number only" additions, with partial credit.

The answer's number is the last one in it. The reward, 1.0 at most, is the sum of two parts:

    right   0.7 for the right number; a wrong one gets 0.2 less 0.02 for each unit it is off
    form    0.3 for the number alone, less with every other character, nothing from 40 on

An answer without a number gets 0. A right number in any wording (0.7 at least) pays more than a
wrong one alone (below 0.5), so being short is never worth being wrong.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

PROTOCOL = "retrograd-reward/1"
MOST_EXTRA_CHARACTERS = 40
MOST_DIGITS = 4


def score(completion: str, right: int) -> dict[str, Any]:
    text = completion.strip()
    numbers = re.findall("-?[0-9]+", text)
    if not numbers:
        return {"reward": 0.0, "parts": {"right": 0.0, "form": 0.0}}
    extra = min(len(text) - len(numbers[-1]), MOST_EXTRA_CHARACTERS)
    form = 0.3 * (1 - extra / MOST_EXTRA_CHARACTERS)
    correct = correctness(numbers[-1], right)
    parts = {"right": round(correct, 4), "form": round(form, 4)}
    return {"reward": round(correct + form, 4), "parts": parts}


def correctness(number: str, right: int) -> float:
    if number == str(right):
        return 0.7
    # A long run of digits is far off anyway, and int() refuses thousands of them.
    if len(number) > MOST_DIGITS:
        return 0.0
    off_by = max(1, abs(int(number) - right))  # "07" is not how one writes 7
    return max(0.0, 0.2 - 0.02 * off_by)


def reply_to(message: dict[str, Any]) -> dict[str, Any]:
    if "protocol" in message:
        return {"protocol": PROTOCOL}
    if "_retrograd_batch_end" in message:
        return message
    return {
        **score(message["completion"], message["metadata"]["answer"]),
        "_retrograd_batch": message["_retrograd_batch"],
        "_retrograd_index": message["_retrograd_index"],
    }


def main() -> None:
    sys.stdin.reconfigure(encoding="utf-8")
    for line in sys.stdin:
        print(json.dumps(reply_to(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
