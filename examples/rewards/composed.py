"""Several rewards as one: a word problem that is solved, and then told briefly.

    python3 composed.py

It takes the functions `score` of `gsm8k.py` and `length.py`, which lie beside it, and adds them up
with weights. Brevity is paid for only where the number is right: a sum would pay for short wrong
answers, and those are far easier to write than right ones.

    reward = solved + BRIEF × near (where right)

parts: `solved` and `brief`, as they were added, and `right`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import gsm8k
import length

PROTOCOL = "retrograd-reward/1"
ECHOED = ("_retrograd_batch", "_retrograd_index")
BRIEF = 0.2
WORDS = 40


def score(completion: str, metadata: dict[str, Any]) -> dict[str, Any]:
    solved = gsm8k.score(completion, metadata)
    right = solved["parts"]["right"]
    brief = BRIEF * right * length.score(completion, {}, target=WORDS)["reward"]
    return {
        "reward": round(solved["reward"] + brief, 6),
        "parts": {"solved": solved["reward"], "brief": round(brief, 6), "right": right},
    }


def serve(score: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer retrograd's lines until they end; with `reward_mode = "oneshot"` as well.

    This function is the same in every program of this folder.
    """
    sys.stdin.reconfigure(encoding="utf-8")
    for line in sys.stdin:
        message = json.loads(line)
        if "protocol" in message:
            if message["protocol"] != PROTOCOL:
                sys.exit(f"this program speaks {PROTOCOL}, not {message['protocol']}")
            reply = {"protocol": PROTOCOL}
        elif "_retrograd_batch_end" in message:
            reply = message
        else:
            if not isinstance(message.get("completion"), str):
                sys.exit(f"`completion` has to be text: {line[:200]}")
            reply = score(message) | {name: message[name] for name in ECHOED if name in message}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    serve(lambda m: score(m["completion"], m.get("metadata", {})))
