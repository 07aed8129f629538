"""What the command line changes in a configuration that has been read already."""

from __future__ import annotations

from pathlib import Path

from trainer.config import RunConfig, SftConfig
from trainer.config.base import LARGEST_SEED
from trainer.config.common import ObserveSection
from trainer.errors import ConfigError


def with_seed(config: RunConfig, seed: int) -> RunConfig:
    """``config`` with another seed of sampling: the answers drawn, and what follows. Raises
    ConfigError."""
    if not 0 <= seed <= LARGEST_SEED:
        raise ConfigError(
            f"--seed {seed} is no seed. Give a whole number from 0 to {LARGEST_SEED}."
        )
    if isinstance(config, SftConfig):
        raise ConfigError(
            f"--seed replaces the seed of [grpo.sampling] or [ppo.sampling], and {config.source} "
            f"describes a run that samples nothing ({config.run.algorithm}). Leave it out."
        )
    sampling = config.rollout.sampling.model_copy(update={"seed": seed})
    section = config.rollout.model_copy(update={"sampling": sampling})
    return config.model_copy(update={config.run.algorithm: section})


def observed_in(config: RunConfig, folder: Path) -> RunConfig:
    """``config`` with its records written into ``folder``."""
    observe = config.observe or ObserveSection()
    return config.model_copy(update={"observe": observe.model_copy(update={"directory": folder})})
