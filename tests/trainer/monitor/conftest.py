from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from trainer.chat.messages import Message, PromptLine
from trainer.monitor import GroupRecord, RunInfo, Trajectory
from trainer.rollout.answers import Answer


@pytest.fixture
def info() -> RunInfo:
    return RunInfo(
        name="addition",
        algorithm="grpo",
        model="base.gguf",
        output="adapter.gguf",
        updates=3,
        params={"training": {"lr": 1e-4, "device": None}, "lora": {"targets": ["q", "v"]}},
        facts={"machine": "cpu"},
        run_id="5d41402abc4b2a76b9719d911017c592",
    )


@pytest.fixture
def trajectory() -> Callable[..., Trajectory]:
    def build(text: str = "5", reward: float = 1.0, **changes: object) -> Trajectory:
        answer = Answer(
            tokens=np.array([53, 2], np.int32),
            logprobs=np.array([-0.5, -0.1], np.float32),
            finished=True,
            text=text,
        )
        values: dict[str, object] = {
            "member": 0,
            "answer": answer,
            "reward": reward,
            "reward_raw": reward,
            "judge_term": 0.0,
            "parts": {},
            "advantage": 0.25,
            "trained": True,
            "skip_reason": None,
        }
        return Trajectory(**(values | changes))

    return build


@pytest.fixture
def group(trajectory: Callable[..., Trajectory]) -> Callable[..., GroupRecord]:
    def build(*answers: Trajectory, key: str = "k1", question: str = "2 + 3?") -> GroupRecord:
        prompt = PromptLine(1, (Message("user", question),), {}, None, key)
        return GroupRecord(0, prompt, answers or (trajectory(),))

    return build
