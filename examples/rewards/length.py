"""Pays for answers of a certain length, smoothly.

    python3 length.py --target 40 [--width 20] [--unit words|characters]

An answer of exactly `target` words gets 1, one that is `width` off gets a half, and one further off
gets less, though never quite 0: 1 / (1 + (off / width)²). So the reward still says which of two
answers is nearer where both are far away. A line of the prompt file may have a `target` of its own.

A word is what stands between white space. In a script without spaces count characters.

Length alone is no task: this program pays as well for nonsense. Use it beside another one, as
`composed.py` does.

parts: `length` is what was counted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any, Literal

PROTOCOL = "retrograd-reward/1"
ECHOED = ("_retrograd_batch", "_retrograd_index")
Unit = Literal["words", "characters"]


def length_of(text: str, unit: Unit) -> int:
    return len(text.split()) if unit == "words" else len(text.strip())


def nearness(length: float, target: float, width: float) -> float:
    """1 at `target`, a half at `width` from it, and falling on."""
    off = (length - target) / width
    return 1 / (1 + off * off)


def score(
    completion: str,
    metadata: dict[str, Any],
    target: float | None = None,
    width: float | None = None,
    unit: Unit = "words",
) -> dict[str, Any]:
    """Without `width` it is half of the target."""
    target = metadata.get("target", target)
    if isinstance(target, bool) or not isinstance(target, int | float) or not target > 0:
        sys.exit(
            f"`target` has to be a number above 0, and is {target!r}: --target, or in the line"
        )
    length = length_of(completion, unit)
    reward = nearness(length, target, width or target / 2)
    return {"reward": round(reward, 6), "parts": {"length": length}}


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
    parser = argparse.ArgumentParser(description="Pays for answers of a certain length.")
    parser.add_argument("--target", type=float, metavar="N")
    parser.add_argument("--width", type=float, metavar="N")
    parser.add_argument("--unit", choices=("words", "characters"), default="words")
    given = parser.parse_args()
    if given.width is not None and not given.width > 0:
        parser.error("--width has to be above 0")
    serve(
        lambda m: score(
            m["completion"], m.get("metadata", {}), given.target, given.width, given.unit
        )
    )


if __name__ == "__main__":
    main()
