"""What the command line changes in a configuration that has been read already."""

from __future__ import annotations

from pathlib import Path

from trainer.config import GrpoConfig, RunConfig
from trainer.config.common import ObserveSection
from trainer.errors import ConfigError


def with_seed(config: RunConfig, seed: int) -> RunConfig:
    """``config`` with another ``[grpo.sampling].seed``: the answers drawn, and what follows."""
    if not isinstance(config, GrpoConfig):
        raise ConfigError(
            f"--seed replaces [grpo.sampling].seed, and {config.source} describes a "
            f"{config.run.algorithm} run. Leave it out."
        )
    sampling = config.grpo.sampling.model_copy(update={"seed": seed})
    return config.model_copy(update={"grpo": config.grpo.model_copy(update={"sampling": sampling})})


def observed_in(config: RunConfig, folder: Path) -> RunConfig:
    """``config`` with its records written into ``folder``."""
    observe = config.observe or ObserveSection()
    return config.model_copy(update={"observe": observe.model_copy(update={"directory": folder})})
