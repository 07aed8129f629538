"""Opening what scores answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from trainer.config.models import GrpoConfig, RolloutConfig
from trainer.errors import ConfigError
from trainer.reward.combined import open_reward as reward_of
from trainer.reward.exchange import ExchangeLog
from trainer.reward.model_folder import check_folder
from trainer.reward.program import RewardProgram


def check_reward_model(config: RolloutConfig) -> None:
    """See before the run that there is a model where one is named. Raises ConfigError."""
    section = config.rollout.reward_model
    if section is not None:
        with _located(config):
            check_folder(section.path)


@contextmanager
def _located(config: RolloutConfig) -> Iterator[None]:
    """Errors about the reward model, with the line and the path that they are about."""
    section = config.rollout.reward_model
    try:
        yield
    except ConfigError as error:
        where = config.where(f"{config.run.algorithm}.reward_model.path")
        path = f"{section.path}: " if section and str(section.path) not in str(error) else ""
        raise ConfigError(f"{where}: {path}{error}") from error


def open_reward(
    config: RolloutConfig,
    device: torch.device,
    *,
    on_note: Callable[[str], None] | None = None,
    exchange: ExchangeLog | None = None,
    on_stderr: Callable[[str], None] | None = None,
) -> RewardProgram:
    """What scores answers: the program, the reward model, or both. Raises RewardError for the
    program, ConfigError for the model."""
    with _located(config):
        return reward_of(
            config.rollout,
            folder=config.folder,
            device=device,
            judge_allowed=isinstance(config, GrpoConfig) and config.grpo.judge is not None,
            on_note=on_note,
            exchange=exchange,
            on_stderr=on_stderr,
        )
