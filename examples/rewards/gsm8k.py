"""Pays for the right number after `####`, the convention of the word problems of GSM8K.

    python3 gsm8k.py [--form 0.1] [--unmarked 0.3]

Each line of the prompt file has `answer`: the number, or a worked solution that ends with
`#### number`. `gsm8k_to_prompts.py` makes such a file of the data set's own.

    1         the right number after the only `####` of the answer, and nothing behind it
    unmarked  no `####`, but the last number of the answer is right
    form      the only `####` with a wrong number behind it
    0         anything else, so also several `####`: a list of guesses

Numbers are equal as numbers: `1,200`, `$1200`, `+1200.` and `1200.00` are one. Only the digits 0 to
9 are read, and at most 30 characters.

parts: `right` is 1 or 0, marked or not; `form` is 1 where there is one `####` with a number.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

PROTOCOL = "retrograd-reward/1"
ECHOED = ("_retrograd_batch", "_retrograd_index")
MARK = "####"
MOST_CHARACTERS = 20_000
"""A longer answer gets 0 unread."""
NUMBER = re.compile(r"[-+]?\$?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?")
WHOLE = re.compile(rf"{NUMBER.pattern}%?\.?")
LONGEST_NUMBER = 30


def number_of(text: str) -> Decimal | None:
    """The number that `text` is, spaces aside; None where it is anything else."""
    text = text.strip()
    if len(text) > LONGEST_NUMBER or not WHOLE.fullmatch(text):
        return None
    return Decimal(text.rstrip("%.").replace(",", "").replace("$", ""))


def marked(text: str) -> Decimal | None:
    """The number behind the only mark of `text`."""
    if text.count(MARK) != 1:
        return None
    return number_of(text.partition(MARK)[2])


def last_number(text: str) -> Decimal | None:
    """The last number in `text`, whatever stands around it."""
    numbers = NUMBER.findall(text)
    return number_of(numbers[-1]) if numbers else None


def expected(metadata: dict[str, Any]) -> Decimal:
    """The number of a line's `answer`. Ends the program where there is none."""
    answer = str(metadata.get("answer", ""))
    number = marked(answer) if MARK in answer else number_of(answer)
    if number is None:
        sys.exit(f"`answer` has to be a number or end with {MARK} and one, and is {answer[:200]!r}")
    return number


def score(
    completion: str, metadata: dict[str, Any], form: float = 0.1, unmarked: float = 0.3
) -> dict[str, Any]:
    right = expected(metadata)
    if len(completion) > MOST_CHARACTERS:
        return {"reward": 0.0, "parts": {"right": 0.0, "form": 0.0}}
    if MARK in completion:
        number = marked(completion)
        if number is None:
            return {"reward": 0.0, "parts": {"right": 0.0, "form": 0.0}}
        is_right = float(number == right)
        return {"reward": is_right or form, "parts": {"right": is_right, "form": 1.0}}
    is_right = float(last_number(completion) == right)
    return {"reward": is_right * unmarked, "parts": {"right": is_right, "form": 0.0}}


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


def main() -> None:
    parser = argparse.ArgumentParser(description="Pays for the right number after ####.")
    parser.add_argument("--form", type=float, default=0.1, metavar="W")
    parser.add_argument("--unmarked", type=float, default=0.3, metavar="W")
    given = parser.parse_args()
    for name in ("form", "unmarked"):
        if not 0 <= getattr(given, name) < 1:
            parser.error(f"--{name} has to be at least 0 and less than 1, which is for all of it")
    serve(lambda m: score(m["completion"], m.get("metadata", {}), given.form, given.unmarked))


if __name__ == "__main__":
    main()
