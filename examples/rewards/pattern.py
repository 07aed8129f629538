"""Pays for an answer that has a form, a regular expression, and says the right thing in it.

    python3 pattern.py [--find] [--form 0.2] [PATTERN]

PATTERN is one of Python's regular expressions. A line of the prompt file may have its own as
`pattern`, which goes first. The whole answer has to match, white space at both ends aside.

    --find    the pattern has to be found in the answer exactly once, wherever that is; twice is a
              list of guesses, and gets 0
    --form W  with a group `(?P<answer>…)` in the pattern and `answer` in the line, the form alone
              gets W and the rest is for what the group holds; without either, the form gets 1

A pattern such as `(a+)+b` takes longer than the universe on some answers. Each answer has a second;
one that takes longer gets 0 and a line on stderr, where you see that the pattern needs mending.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import islice
from typing import Any

PROTOCOL = "retrograd-reward/1"
ECHOED = ("_retrograd_batch", "_retrograd_index")
MOST_CHARACTERS = 20_000
"""A longer answer gets 0 unread."""
SECONDS = 1.0
NOTHING = {"reward": 0.0, "parts": {"form": 0.0, "right": 0.0}}


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in the block after `seconds`. Python's matcher looks for signals while it
    tries, so this ends a match that would go on for ever."""

    def ring(_signal: int, _frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        sys.exit(f"{pattern!r} is no regular expression: {error}")


def only_match(pattern: re.Pattern[str], text: str, find: bool) -> re.Match[str] | None:
    """Of the whole text, or with `find` the one in it, if it is the only one."""
    if not find:
        return pattern.fullmatch(text)
    found = list(islice(pattern.finditer(text), 2))
    return found[0] if len(found) == 1 else None


def score(
    completion: str,
    metadata: dict[str, Any],
    pattern: str | None = None,
    find: bool = False,
    form: float = 0.2,
) -> dict[str, Any]:
    pattern = metadata.get("pattern", pattern)
    if not isinstance(pattern, str):
        sys.exit("no pattern: give one to this program, or `pattern` in each line of the prompts")
    expression = compiled(pattern)
    if len(completion) > MOST_CHARACTERS:
        return NOTHING
    try:
        with at_most(SECONDS):
            match = only_match(expression, completion.strip(), find)
    except TimeoutError:
        start = completion[:60]
        print(f"{pattern!r} took over {SECONDS:g} s on {start!r}…", file=sys.stderr, flush=True)
        return NOTHING
    if match is None:
        return NOTHING
    if "answer" not in expression.groupindex or "answer" not in metadata:
        return {"reward": 1.0, "parts": {"form": 1.0, "right": 1.0}}
    right = float((match["answer"] or "").strip() == str(metadata["answer"]))
    reward = round(form + (1 - form) * right, 4)
    return {"reward": reward, "parts": {"form": 1.0, "right": right}}


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
    parser = argparse.ArgumentParser(description="Pays for a form and what is said in it.")
    parser.add_argument("pattern", nargs="?", metavar="PATTERN")
    parser.add_argument("--find", action="store_true")
    parser.add_argument("--form", type=float, default=0.2, metavar="W")
    given = parser.parse_args()
    if not 0 <= given.form < 1:
        parser.error("--form has to be at least 0 and less than 1, or a wrong answer pays as well")
    if given.pattern is not None:
        compiled(given.pattern)
    serve(
        lambda m: score(
            m["completion"], m.get("metadata", {}), given.pattern, given.find, given.form
        )
    )


if __name__ == "__main__":
    main()
