"""Writes held_out.jsonl: 64 sums of the kinds in prompts.jsonl, none of which stands there.

    python examples/addition/make_held_out.py

The same seed gives the same bytes.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

HERE = Path(__file__).resolve().parent
SEED = 1
COUNT = 64
ONE_DIGIT, TWO_DIGITS = (1, 9), (10, 30)
KINDS = ((ONE_DIGIT, ONE_DIGIT), (TWO_DIGITS, ONE_DIGIT), (ONE_DIGIT, ONE_DIGIT), (TWO_DIGITS,) * 2)
"""Of four sums in a row two add one-digit numbers, as in training."""
SYSTEM = "You add numbers. Answer with the number only, for example: 5"


def line(a: int, b: int) -> str:
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"{a} + {b} = ?"},
    ]
    return json.dumps({"messages": messages, "answer": a + b})


def trained_on() -> set[str]:
    return set((HERE / "prompts.jsonl").read_text(encoding="utf-8").splitlines())


def held_out() -> list[str]:
    draw, used, lines = random.Random(SEED), trained_on(), []
    while len(lines) < COUNT:
        first, second = KINDS[len(lines) % len(KINDS)]
        drawn = line(draw.randint(*first), draw.randint(*second))
        if drawn not in used:
            used.add(drawn)
            lines.append(drawn)
    return lines


def main() -> None:
    text = "".join(f"{drawn}\n" for drawn in held_out())
    (HERE / "held_out.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
