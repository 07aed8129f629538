"""A reward program that answers as it reads, and how tests look at what comes back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from trainer.errors import RewardError
from trainer.reward.program import RewardProgram, RewardReply, RewardRequest

ONE_BY_ONE = """\
import json, sys
VERSION, NEWLINE = "retrograd-reward/1", chr(10)

def answer(message):
    match message:
        case {"protocol": _}:
            return {"protocol": VERSION}
        case {"completion": text, "_retrograd_batch": batch, "_retrograd_index": index}:
            return {"reward": len(text), "_retrograd_batch": batch, "_retrograd_index": index}
    return message

while line := sys.stdin.readline():
    sys.stdout.write(json.dumps(answer(json.loads(line))) + NEWLINE)
    sys.stdout.flush()
"""
"""The reward is the answer's length."""


def score_error(program: RewardProgram, requests: Sequence[RewardRequest]) -> str:
    """The message with which scoring fails; the program is closed."""
    with program, pytest.raises(RewardError) as caught:
        program.score(requests)
    return str(caught.value)


def rewards(replies: Sequence[RewardReply]) -> list[float]:
    return [reply.reward for reply in replies]
