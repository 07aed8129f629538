from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from small_runs import SMALL, rewards, write_run

from trainer.config import GrpoConfig


@pytest.fixture(scope="session")
def model(random_llama: Callable[..., Path]) -> Path:
    """A random model of one small layer."""
    return random_llama(**SMALL)


@pytest.fixture
def configured(tmp_path: Path, model: Path) -> Callable[..., GrpoConfig]:
    """A configuration with changes by dotted key."""

    def configure(changes: Mapping[str, object] | None = None) -> GrpoConfig:
        return write_run(tmp_path, model, rewards([0.0, 1.0]), changes)

    return configure
