from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from trainer.chat.messages import Message, PromptLine
from trainer.monitor import GroupRecord, RunInfo, Trajectory
from trainer.rollout.answers import Answer

RETROGRAD = Path(sys.executable).with_name("retrograd")


@pytest.fixture(scope="session")
def retrograd() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the installed command."""

    def run(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
        command = [str(RETROGRAD), *map(str, arguments)]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=300, **options
        )

    return run


@pytest.fixture(scope="session")
def retrograd_path() -> Path:
    """The installed command itself, for a test that starts it in its own way."""
    return RETROGRAD


@pytest.fixture
def info() -> RunInfo:
    return RunInfo(
        name="addition",
        algorithm="grpo",
        model="models/base.gguf",
        output="runs/adapter.gguf",
        updates=24,
        params={"output": {"kind": "adapter"}, "grpo": {"kl_coefficient": 0.0, "judge": None}},
        facts={"model": "a small one"},
    )


@pytest.fixture
def ppo_info(info) -> RunInfo:
    """The same run by PPO, with a critic and no penalty."""
    keys = {"kl_coefficient": 0.0, "kl_anchor": "rollout", "critic": {"enabled": True}}
    return dataclasses.replace(info, algorithm="ppo", params={"ppo": keys})


@pytest.fixture
def sft_info(info) -> RunInfo:
    """A run of SFT as long."""
    return dataclasses.replace(info, algorithm="sft", params={"sft": {"shuffle": True}})


@pytest.fixture
def group() -> Callable[..., GroupRecord]:
    """A group from (text, reward) pairs."""

    def build(
        *answers: tuple[str, float], question: str = "2 + 3?", finished: bool = True
    ) -> GroupRecord:
        trajectories = [
            Trajectory(
                member=member,
                answer=Answer(np.zeros(1, np.int32), np.zeros(1, np.float32), finished, text),
                reward=reward,
                reward_raw=reward,
                judge_term=0.0,
                parts={},
                advantage=0.0,
                trained=True,
                skip_reason=None,
            )
            for member, (text, reward) in enumerate(answers)
        ]
        return GroupRecord(
            0, PromptLine(1, (Message("user", question),), {}, None, "k"), trajectories
        )

    return build


@pytest.fixture
def values() -> dict[str, float]:
    """The metrics of one update."""
    return {
        "reward/mean": 0.4125,
        "reward/group_std": 0.2,
        "batch/zero_std_group_fraction": 0.25,
        "optimizer/grad_norm": 0.831,
        "policy/clip_fraction": 0.0625,
        "policy/approx_kl": 0.00214,
        "completions/length_mean": 11.25,
        "completions/truncation_fraction": 0.0,
        "timing/generate_seconds": 5.2,
        "timing/reward_seconds": 0.1,
        "timing/score_seconds": 1.3,
        "timing/train_seconds": 3.2,
        "timing/swap_seconds": 0.08,
        "timing/update_seconds": 9.8,
    }
