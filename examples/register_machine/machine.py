"""A machine of three registers, its programs, and the shortest way to a goal.

A register holds a whole number from 0 to 20. X and Y are registers, or the same one twice:

    add X Y     X becomes X + Y
    sub X Y     X becomes X - Y
    copy X Y    X becomes Y
    swap X Y    X and Y change places

A program is such instructions, one a line. It stops before a line that is none, and before one
whose result a register cannot hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

REGISTERS = "ABC"
HIGHEST = 20
OPERATIONS = ("add", "sub", "copy", "swap")
LINE = re.compile(f"({'|'.join(OPERATIONS)}) ([{REGISTERS}]) ([{REGISTERS}])")

State = tuple[int, ...]
"""The value of each register."""
Goal = tuple[int | None, ...]
"""The wanted value of each register; None where any will do."""


class Instruction(NamedTuple):
    operation: str
    first: int
    second: int

    def __str__(self) -> str:
        return f"{self.operation} {REGISTERS[self.first]} {REGISTERS[self.second]}"


Program = tuple[Instruction, ...]

INSTRUCTIONS = tuple(
    Instruction(operation, first, second)
    for operation in OPERATIONS
    for first, second in product(range(len(REGISTERS)), repeat=2)
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program ended: the registers, the instructions it ran, whether that was all."""

    state: State
    ran: int
    complete: bool


def parse(line: str) -> Instruction | None:
    """The instruction that ``line`` is, spaces around it aside; None if it is none."""
    match = LINE.fullmatch(line.strip(" "))
    if match is None:
        return None
    return Instruction(match[1], REGISTERS.index(match[2]), REGISTERS.index(match[3]))


def apply(instruction: Instruction, state: State) -> State | None:
    """The registers after ``instruction``; None if one cannot hold its result."""
    operation, first, second = instruction
    registers = list(state)
    if operation == "add":
        registers[first] += state[second]
    elif operation == "sub":
        registers[first] -= state[second]
    else:
        registers[first] = state[second]
        if operation == "swap":
            registers[second] = state[first]
    return tuple(registers) if 0 <= registers[first] <= HIGHEST else None


def run(text: str, state: State) -> Outcome:
    """Run a program from ``state`` to its end, or to the line where it stops. Blank lines before
    and after it are no part of it. An empty text is a program that runs nothing."""
    lines = text.strip().split("\n") if text.strip() else []
    for ran, line in enumerate(lines):
        instruction = parse(line)
        after = apply(instruction, state) if instruction else None
        if after is None:
            return Outcome(state, ran, complete=False)
        state = after
    return Outcome(state, len(lines), complete=True)


def reached(state: State, goal: Goal) -> bool:
    return all(wanted in (None, value) for value, wanted in zip(state, goal, strict=True))


def levels(state: State) -> Iterator[set[State]]:
    """Breadth-first search: the states 0 instructions away from ``state``, then those 1 away, and
    so on until there are no more."""
    seen, level = {state}, {state}
    while level:
        yield level
        steps = product(INSTRUCTIONS, level)
        level = {after for step in steps if (after := apply(*step)) is not None} - seen
        seen |= level


def distance(state: State, goal: Goal, at_most: int | None = None) -> int | None:
    """The fewest instructions that lead from ``state`` to ``goal``; None if no program does, or
    none of ``at_most`` instructions."""
    for count, level in enumerate(levels(state)):
        if any(reached(found, goal) for found in level):
            return count
        if count == at_most:
            return None
    return None


def shortest_programs(state: State, goal: Goal) -> list[Program]:
    """All programs of the fewest instructions that lead from ``state`` to ``goal``."""
    left = distance(state, goal)
    if left is None:
        return []
    if left == 0:
        return [()]
    return [
        (instruction, *rest)
        for instruction in INSTRUCTIONS
        if (after := apply(instruction, state)) is not None
        and distance(after, goal, at_most=left - 1) is not None
        for rest in shortest_programs(after, goal)
    ]
