"""Adapters with random factors, for any model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from trainer.gguf.adapter import write_adapter
from trainer.gguf.file import GgufFile


@pytest.fixture(scope="session")
def random_adapter(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Write an adapter of every query and down matrix that moves the logits by whole nats."""

    def make(base: Path, *, seed: int = 0, rank: int = 4) -> Path:
        rng = np.random.default_rng(seed)
        factors = {}
        for name, info in GgufFile(base).tensors.items():
            if name.endswith(("attn_q.weight", "ffn_down.weight")):
                rows, columns = info.shape
                factors[f"{name}.lora_a"] = rng.standard_normal((rank, columns), np.float32)
                factors[f"{name}.lora_b"] = rng.standard_normal((rows, rank), np.float32) * 0.02
        path = tmp_path_factory.mktemp("adapter") / f"adapter-{seed}.gguf"
        write_adapter(path, factors, architecture="llama", alpha=2.0 * rank, dtype="f32")
        return path

    return make
