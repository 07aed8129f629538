"""Pays for an answer that is the expected text.

Each line of the prompt file has `answer`: a text, a number, or a list of those, of which any one
will do.

    python3 exact_match.py [--loose] [--near 0.3]

Spaces, tabs and line ends at both ends do not count, and several in a row count as one.

    --loose   neither do capitals, full-width letters and the like (Unicode NFKC), and punctuation
              at both ends
    --near W  an answer that is not right gets up to W for the words that it shares with the
              expected one (F1 of the two lists of words), so that not all wrong answers are alike

parts: `right` is 1 or 0, `near` the share of words.
"""

from __future__ import annotations

import argparse
import json
import string
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import Any

PROTOCOL = "retrograd-reward/1"
ECHOED = ("_retrograd_batch", "_retrograd_index")
MOST_CHARACTERS = 20_000
"""A longer answer gets 0 unread."""


def expected(metadata: dict[str, Any]) -> list[str]:
    """The texts that `answer` allows. Ends the program where there is none."""
    answer = metadata.get("answer")
    allowed = answer if isinstance(answer, list) else [answer]
    for one in allowed:
        if isinstance(one, bool) or not isinstance(one, str | int | float):
            sys.exit(f"`answer` has to be a text, a number or a list of those, not {answer!r}")
    if not allowed:
        sys.exit("`answer` is an empty list, so that no answer could be right")
    return [str(one) for one in allowed]


def plain(text: str, loose: bool) -> str:
    """`text` with what does not count taken out."""
    text = " ".join(text.split())
    if loose:
        text = unicodedata.normalize("NFKC", text).casefold()
        text = text.strip(string.punctuation + string.whitespace)
    return text


def shared_words(text: str, other: str) -> float:
    """F1 of the words of two texts: 1 for the same words in any order, 0 for none in common. A word
    that is said again counts only as often as the other text has it."""
    ours, theirs = Counter(text.split()), Counter(other.split())
    both = sum((ours & theirs).values())
    return 2 * both / (sum(ours.values()) + sum(theirs.values())) if both else 0.0


def score(
    completion: str, metadata: dict[str, Any], loose: bool = False, near: float = 0.0
) -> dict[str, Any]:
    allowed = [plain(one, loose) for one in expected(metadata)]
    if len(completion) > MOST_CHARACTERS:
        return {"reward": 0.0, "parts": {"right": 0.0, "near": 0.0}}
    text = plain(completion, loose)
    right = float(text in allowed)
    share = max(shared_words(text, one) for one in allowed)
    reward = right or near * share
    return {"reward": round(reward, 4), "parts": {"right": right, "near": round(share, 4)}}


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
    parser = argparse.ArgumentParser(description="Pays for the expected text.")
    parser.add_argument("--loose", action="store_true")
    parser.add_argument("--near", type=float, default=0.0, metavar="W")
    given = parser.parse_args()
    if not 0 <= given.near < 1:
        parser.error("--near has to be at least 0 and less than 1, or a wrong answer pays as well")
    serve(lambda m: score(m["completion"], m.get("metadata", {}), given.loose, given.near))


if __name__ == "__main__":
    main()
