"""Writes demonstrations.jsonl, train.jsonl and held_out.jsonl, the same bytes each time.

    python3 examples/register_machine/make_tasks.py

A task is drawn by walking: a few random instructions lead from random registers somewhere, and the
registers that they named are wanted to be as they are there. A walk may take a longer way than it
must, so the shortest is searched, and the draw is kept if its distance is the one asked for: of
eight tasks in a row four take one instruction, three take two, and one takes three.

No two tasks, in one file or in two, are the same under other names of the registers.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from itertools import cycle, islice, permutations
from pathlib import Path
from typing import Any, NamedTuple

from machine import (
    INSTRUCTIONS,
    REGISTERS,
    Goal,
    Instruction,
    State,
    distance,
    run,
    shortest_programs,
)

SEED = 1
COUNTS = {"demonstrations.jsonl": 480, "train.jsonl": 256, "held_out.jsonl": 64}
DISTANCES = (1, 1, 2, 1, 2, 1, 3, 2)
START = (1, 9)
STEPS = [
    i for i in INSTRUCTIONS if i.first < i.second or (i.first > i.second and i.operation != "swap")
]
"""What a walk is made of: each has an effect of its own, and none is the usual answer."""

SYSTEM = "Registers A, B, C. Instructions: add A B, sub A B, copy A B, swap A B."


class Task(NamedTuple):
    start: State
    wanted: Goal
    distance: int

    @property
    def question(self) -> str:
        return f"{shown(self.start)}. Make {shown(self.wanted)}."

    @property
    def family(self) -> tuple[tuple[int, int | None], ...]:
        """The same for tasks that differ only by the names of the registers."""
        orders = permutations(zip(self.start, self.wanted, strict=True))
        return min(orders, key=repr)

    @property
    def prompt(self) -> list[dict[str, str]]:
        return [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": self.question},
        ]


def shown(values: Goal) -> str:
    named = zip(REGISTERS, values, strict=True)
    return " ".join(f"{name}={value}" for name, value in named if value is not None)


def draw(dice: random.Random, steps: int) -> Task | None:
    """A task of ``steps`` instructions; None if this walk led to another one."""
    start = tuple(dice.randint(*START) for _ in REGISTERS)
    program = dice.choices(STEPS, k=steps)
    outcome = run(text(program), start)
    named = {at for _, *pair in program for at in pair}
    wanted = tuple(value if at in named else None for at, value in enumerate(outcome.state))
    if not outcome.complete or distance(start, wanted, at_most=steps - 1) is not None:
        return None
    return Task(start, wanted, steps)


def tasks(dice: random.Random) -> Iterator[Task]:
    """Tasks without end, no two of one family."""
    families = set()
    for steps in cycle(DISTANCES):
        task = None
        while task is None or task.family in families:
            task = draw(dice, steps)
        families.add(task.family)
        yield task


def demonstration(task: Task, dice: random.Random) -> dict[str, Any]:
    """The task with one of its shortest programs."""
    program = dice.choice(shortest_programs(task.start, task.wanted))
    return {"messages": [*task.prompt, {"role": "assistant", "content": text(program)}]}


def text(program: Iterable[Instruction]) -> str:
    return "\n".join(str(instruction) for instruction in program)


def question(task: Task) -> dict[str, Any]:
    return {
        "messages": task.prompt,
        "start": task.start,
        "wanted": task.wanted,
        "distance": task.distance,
    }


def files(seed: int = SEED) -> dict[str, str]:
    """The text of each file."""
    drawn, choice = tasks(random.Random(seed)), random.Random(seed)
    lines = {
        name: [
            demonstration(task, choice) if name == "demonstrations.jsonl" else question(task)
            for task in islice(drawn, count)
        ]
        for name, count in COUNTS.items()
    }
    return {name: "".join(json.dumps(x) + "\n" for x in rows) for name, rows in lines.items()}


if __name__ == "__main__":
    for name, content in files().items():
        (Path(__file__).parent / name).write_text(content, encoding="utf-8", newline="\n")
