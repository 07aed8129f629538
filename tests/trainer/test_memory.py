from __future__ import annotations

import json

import pytest
from small_runs import PPO, SMALL, rewards, write_run, write_texts

from trainer import sizing
from trainer.inputs import read_inputs, read_text_inputs
from trainer.memory import chunk_of, concurrency_of, estimate, micro_batch_of


@pytest.fixture(scope="module")
def model(random_llama):
    """One layer of 32 with 2 of 4 heads for keys and values, vocabulary 260."""
    return random_llama(**SMALL)


@pytest.fixture
def run(tmp_path, model):
    """A configuration and its inputs; the prompt has 8 tokens, answers have at most 6."""

    def _run(changes=None, **options):
        config = write_run(tmp_path, model, rewards([0.0]), changes, **options)
        return config, read_inputs(config)

    return _run


@pytest.fixture
def parts(run):
    return lambda changes=None, **options: estimate(*run(changes, **options))


@pytest.mark.parametrize(
    ("changes", "cells"),
    [
        # 4 answers of 6 with room for three prompts of 8: as many as the context has
        ({}, 48),
        # 32 answers of 6, and 2 · 4 + 1 prompts of 8
        ({"grpo.prompts_per_update": 4, "grpo.group_size": 8}, 32 * 6 + 9 * 8),
        # 8 answers at once, and 2 · 1 + 1 prompts
        (
            {
                "grpo.prompts_per_update": 4,
                "grpo.group_size": 8,
                "training.generation_concurrency": 8,
            },
            8 * 6 + 3 * 8,
        ),
    ],
)
def test_the_samplers_cache_is_what_the_sampler_makes_room_for(parts, changes, cells):
    # 16 numbers for keys and 16 for values, in F32
    assert parts(changes)["sampler's cache"] == cells * 2 * 16 * 4
    fast = {**changes, "training.fast_sampling_context": True}
    assert parts(fast)["sampler's cache"] == cells * 2 * 16 * 2


def test_no_more_answers_are_generated_at_once_than_there_are(run, monkeypatch):
    batch = {"grpo.prompts_per_update": 3, "grpo.group_size": 5}
    assert concurrency_of(*run(batch)) == 15
    assert concurrency_of(*run(batch | {"training.generation_concurrency": 64})) == 15
    assert concurrency_of(*run(batch | {"training.generation_concurrency": 7})) == 7
    # a quarter of the memory for 4 caches of 8 + 6 tokens
    monkeypatch.setattr(sizing, "available_bytes", lambda: 4 * 4 * 14 * 2 * 16 * 4)
    assert concurrency_of(*run(batch)) == 4


def test_a_pass_has_at_most_what_a_step_is_made_on(parts):
    assert "one pass of 32 tokens" in parts(), "8 + 4 · 6"
    assert "one pass of 20 tokens" in parts({"training.micro_batch": 20})
    # 4 answers in 1 step, and in 2; each with its prompt has 14 tokens at most
    assert "one pass of 56 tokens" in parts({"ppo.minibatches": 1}, base=PPO)
    assert "one pass of 28 tokens" in parts({"ppo.minibatches": 2}, base=PPO)


def test_the_micro_batch_is_the_given_one_or_an_automatic_one(run, monkeypatch):
    config, inputs = run({"training.micro_batch": 77})
    assert micro_batch_of(config, inputs.architecture) == 77
    config, inputs = run({"training.micro_batch": "auto"})
    monkeypatch.setattr(sizing, "available_bytes", lambda: 0)
    assert micro_batch_of(config, inputs.architecture) == 256, "the least"


@pytest.mark.parametrize(
    ("changes", "chunk", "rows"),
    [
        ({}, 512, 32),
        ({"training.ce_chunk_tokens": 5}, 5, 5),
        ({"training.chunked_cross_entropy": False}, 48 * 4, 32),
    ],
)
def test_logits_are_made_for_a_chunk_or_a_whole_pass(run, changes, chunk, rows):
    config, inputs = run(changes)
    assert chunk_of(config) == chunk
    assert estimate(config, inputs)["logits"] == rows * 260 * 4


def test_weights_for_sampling_and_the_adapter(parts, model):
    f32 = parts()
    assert f32["weights for sampling"] == f32["base in F32"]
    assert parts({"training.rollout_weights": "f16"})["weights for sampling"] == (
        f32["base in F32"] // 2
    )
    assert parts({"training.rollout_weights": "file"})["weights for sampling"] == (
        model.stat().st_size
    )
    assert f32["adapter"] == 928 * 4 * 4, "parameters, gradient and two moments"


def test_a_critic_adds_its_features(parts):
    # 4 answers of 6 tokens, 32 numbers each: as kept, joined and standardised
    assert parts(base=PPO)["critic's features"] == 4 * 6 * 32 * (4 + 4 + 8)
    assert "critic's features" not in parts({"ppo.critic.enabled": False}, base=PPO)
    assert "critic's features" not in parts()


def test_a_reward_model_takes_four_bytes_a_number(parts, tmp_path):
    """Two tensors in 16 bits, 10 numbers in all, are computed in F32."""
    entries = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]},
        "b": {"dtype": "F16", "shape": [4], "data_offsets": [12, 20]},
    }
    header = json.dumps(entries).encode()
    (tmp_path / "scorer").mkdir()
    weights = len(header).to_bytes(8, "little") + header + bytes(20)
    (tmp_path / "scorer/model.safetensors").write_bytes(weights)
    (tmp_path / "scorer/other.safetensors").write_bytes(b"damaged")
    assert parts({"grpo.reward_model.path": "scorer"})["reward model"] == 40


# -- SFT -----------------------------------------------------------------------------------------


def test_sft_has_no_cache_and_a_pass_of_at_most_its_texts(tmp_path, model):
    """Ten texts are steps of five, but eight are reckoned with."""
    config = write_texts(tmp_path, model, {"training.micro_batch": 9999})
    inputs = read_text_inputs(config)
    parts = estimate(config, inputs)
    assert list(parts) == [
        "base in F32",
        "weights to check the adapter with",
        f"one pass of {8 * inputs.longest_text} tokens",
        "logits",
        "adapter",
    ]
    assert chunk_of(config) == 512
    whole = write_texts(tmp_path, model, {"training.chunked_cross_entropy": False})
    assert chunk_of(whole) == 48 * 8


def test_an_adapter_to_begin_with_is_kept_beside_the_one_that_is_trained(
    run, tmp_path, model, random_adapter
):
    begun = {"lora.init_adapter": str(random_adapter(model))} | dict.fromkeys(
        ("lora.rank", "lora.alpha", "lora.dtype")
    )
    config, inputs = run(begun)
    assert estimate(config, inputs)["adapter"] == 4 * 5 * inputs.adapter_size
    plain, others = run()
    assert estimate(plain, others)["adapter"] == 4 * 4 * others.adapter_size


def test_a_merged_model_is_counted_where_the_run_ends_with_one(run):
    config, inputs = run({"output.kind": "model", "output.path": "out/merged.gguf"})
    parts = estimate(config, inputs)
    base = sizing.trained_weights_bytes(inputs.architecture)
    assert parts["merged model, to compare it"] == base // 2
    assert "merged model, to compare it" not in estimate(*run())
