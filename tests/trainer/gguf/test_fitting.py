"""What only applies an adapter takes it as llama.cpp does; what trains it asks more."""

from __future__ import annotations

import numpy as np
import pytest

from app.model_server import offer_of_files
from trainer.conversation import Partner
from trainer.errors import ModelError
from trainer.gguf.adapter import read_adapter, write_adapter
from trainer.gguf.architecture import describe
from trainer.gguf.file import GgufFile
from trainer.gguf.fitting import check_fits
from trainer.rollout.answers import SamplingSettings

NAMES = ("blk.0.attn_q.weight", "blk.0.ffn_up.weight")


@pytest.fixture
def mixed(tiny, tmp_path):
    """An adapter of tiny with a rank of 1 for one matrix, and of 3 for another."""
    shapes, draw = GgufFile(tiny).tensors, np.random.default_rng(0)
    factors = {}
    for name, rank in zip(NAMES, (1, 3), strict=True):
        rows, columns = shapes[name].shape
        factors[f"{name}.lora_a"] = draw.standard_normal((rank, columns), np.float32)
        factors[f"{name}.lora_b"] = draw.standard_normal((rows, rank), np.float32)
    path = tmp_path / "mixed.gguf"
    write_adapter(path, factors, architecture="llama", alpha=2.0, dtype="f32")
    return path


def test_ranks_may_differ_where_nothing_is_trained(tiny, mixed):
    assert set(check_fits(GgufFile(mixed), GgufFile(tiny))) == set(NAMES)
    with pytest.raises(ModelError, match="an adapter of several ranks can be talked to, served"):
        read_adapter(mixed, describe(GgufFile(tiny)))


def test_such_an_adapter_is_talked_to_and_served(tiny, mixed):
    assert offer_of_files(tiny, mixed).names == ["base", "adapter"]
    settings = SamplingSettings.greedy(4)
    with Partner(tiny, [None, mixed]) as partner:
        said = [
            partner.conversation(voice).say(
                "Add 2 and 3.", 0, settings, on_text=lambda _: None, should_stop=lambda: False
            )
            for voice in (0, 1)
        ]
    assert said[0].reply.text != said[1].reply.text
