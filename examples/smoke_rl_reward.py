"""A complete reward program: scores the answers to one-digit additions.

retrograd starts it once and talks to it in JSON lines (`retrograd-reward/1`). The same loop also
serves `reward_mode = "oneshot"`, where there is no handshake and nothing to echo.

    1.0   the right number and nothing else
    0.5   the right number inside a sentence
    0.2   a wrong number and nothing else, less 0.05 for each unit it is off
    0.0   anything else
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

PROTOCOL = "retrograd-reward/1"
ECHOED = ("_retrograd_batch", "_retrograd_index")


def score(completion: str, right: int) -> float:
    text = completion.strip()
    if text == str(right):
        return 1.0
    # ASCII digits only, and few: int() also takes "1_0" and "٣", and refuses 5,000 digits.
    if re.fullmatch("0|[1-9][0-9]{0,3}", text):
        return max(0.0, round(0.2 - 0.05 * abs(int(text) - right), 2))
    # More than one number is a list of guesses, which must not pay.
    return 0.5 if re.findall("-?[0-9]+", text) == [str(right)] else 0.0


def right_answer(request: dict[str, Any]) -> int:
    """The `answer` of the prompt's line, or the sum of the two numbers in the question."""
    answer = request.get("metadata", {}).get("answer")
    if answer is not None:
        return int(answer)
    return sum(int(number) for number in re.findall("[0-9]+", request["prompt"]))


def reply_to(message: dict[str, Any]) -> dict[str, Any]:
    if "protocol" in message:
        if message["protocol"] != PROTOCOL:
            sys.exit(f"this program speaks {PROTOCOL}, not {message['protocol']}")
        return {"protocol": PROTOCOL}
    if "_retrograd_batch_end" in message:
        return message
    reward = score(message["completion"], right_answer(message))
    return {"reward": reward, **{name: message[name] for name in ECHOED if name in message}}


def main() -> None:
    # Output is for the protocol alone; anything for people goes to stderr.
    sys.stdin.reconfigure(encoding="utf-8")
    for line in sys.stdin:
        print(json.dumps(reply_to(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
