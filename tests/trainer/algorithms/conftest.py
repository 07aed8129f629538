from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from small_runs import PPO, SMALL, end_often, rewards, write_run

from trainer.config import GrpoConfig, PpoConfig
from trainer.gguf.file import GgufFile
from trainer.model.decoder import Decoder


@pytest.fixture(scope="session")
def model(random_llama: Callable[..., Path]) -> Path:
    """A random model of one small layer."""
    return random_llama(**SMALL)


@pytest.fixture(scope="session")
def ending_model(random_llama: Callable[..., Path]) -> Path:
    """The same, whose answers often end before the limit."""
    return end_often(random_llama(**SMALL))


@pytest.fixture(scope="session")
def decoder(model: Path) -> Decoder:
    return Decoder(GgufFile(model), torch.device("cpu"), context=48)


@pytest.fixture
def configured(tmp_path: Path, model: Path) -> Callable[..., GrpoConfig]:
    """A configuration with changes by dotted key."""

    def configure(changes: Mapping[str, object] | None = None) -> GrpoConfig:
        return write_run(tmp_path, model, rewards([0.0, 1.0]), changes)

    return configure


@pytest.fixture
def configured_ppo(tmp_path: Path, model: Path) -> Callable[..., PpoConfig]:
    """The same for PPO."""

    def configure(changes: Mapping[str, object] | None = None) -> PpoConfig:
        return write_run(tmp_path, model, rewards([0.0, 1.0]), changes, base=PPO)

    return configure
