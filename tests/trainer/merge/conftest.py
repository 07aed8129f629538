from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from trainer.export import write
from trainer.gguf.architecture import describe
from trainer.gguf.file import GgufFile
from trainer.gguf.tensors import select_targets
from trainer.model.adapter import Adapter


@pytest.fixture
def adapter_for(tmp_path) -> Callable[..., Path]:
    """Write a random adapter of a model; the file's path."""

    def make(
        model: Path,
        *,
        size: float = 0.1,
        rank: int = 3,
        alpha: float = 4.0,
        targets: tuple[str, ...] = ("auto",),
        name: str = "tuned.gguf",
    ) -> Path:
        decoder = describe(GgufFile(model))
        names = select_targets(decoder, targets)
        device = torch.device("cpu")
        adapter = Adapter(decoder, names, rank=rank, alpha=alpha, seed=1, device=device)
        write(tmp_path / name, adapter.random(size), dtype="f32")
        return tmp_path / name

    return make
