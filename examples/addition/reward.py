"""Scores "answer with the number only" additions, with partial credit.

    1.0          the right number and nothing else
    0.5          words, but the last number in them is the right one
    0.0 to 0.3   a wrong number and nothing else: the nearer, the more
    0.0          anything else

A wrong number pays less than the right one in words, so that being short is never worth being
wrong. Two parts are reported beside the reward: `right` and `bare`.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

PROTOCOL = "retrograd-reward/1"
WRONG_AT_MOST = 0.3
OFF_BY_AT_MOST = 10


def score(completion: str, right: int) -> dict[str, Any]:
    text = completion.strip()
    # Few digits: no sum here has more than three, and int() refuses a number of 5,000.
    bare = re.fullmatch("0|[1-9][0-9]{0,3}", text) is not None
    numbers = re.findall("-?[0-9]+", text)
    is_right = numbers[-1:] == [str(right)]
    if is_right:
        reward = 1.0 if bare else 0.5
    elif bare:
        off_by = min(abs(int(text) - right), OFF_BY_AT_MOST)
        reward = WRONG_AT_MOST * (1 - off_by / OFF_BY_AT_MOST)
    else:
        reward = 0.0
    return {"reward": round(reward, 4), "parts": {"right": int(is_right), "bare": int(bare)}}


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
