"""One update of GRPO on models of other architectures, from the prompt to the exported adapter."""

from __future__ import annotations

import gguf
import pytest
from random_models import ARCHITECTURES, TEMPLATE
from small_runs import PPO, SMALL, exported, rewards, teach, train

from trainer.gguf.file import GgufFile

PROMPTS = ["one two three four", "one two three five six", "seven"]
CHANGES = {
    "grpo.updates": 2,
    "grpo.prompts_per_update": 3,
    "grpo.sampling.max_new_tokens": 12,
    "training.ctx": 64,
    "lora.targets": "auto",
}
WINDOW = ("attention.sliding_window", 8)
REWARDS = rewards([0.0, 1.0, 0.0, 2.0])


# Windows, factors by length, and experts are what a sampler and a trainer most easily see
# differently.
QUICK = ("gemma3", "phi3", "qwen3moe")
OTHERS = sorted(set(ARCHITECTURES) - {"llama", *QUICK})


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.full) for name in OTHERS)]
)
def test_sampler_and_trainer_agree_and_the_adapter_is_checked(name, random_model, tmp_path):
    """Prompts and answers are longer than the windows; what prompts begin with alike is sampled and
    trained on once."""
    shape = SMALL | {"layers": 4} | ARCHITECTURES[name]
    if name == "gemma3":
        shape["own"] = (WINDOW, ("attention.sliding_window_pattern", 2))
    path = random_model(name, **shape)
    run = train(tmp_path, path, REWARDS, CHANGES, prompts=PROMPTS)
    assert run.outcome.status == "completed", run.outcome
    limit = 5e-4 if name.startswith("gemma") else 1e-5
    for values in run.values.values():
        assert values["sampler/logprob_gap_mean"] < limit
        assert values["optimizer/grad_norm"] > 0
    [event] = [e for e in run.events if e.code == "export_checked"]
    assert event.data["gap"] < limit < event.data["change"]
    factors = exported(run.outcome.output)
    assert all(factor.any() for factor in factors.values())


def test_ppo_with_an_entropy_bonus_on_capped_logits(random_model, tmp_path):
    """Whose entropy, and its gradient, pass through the cap."""
    path = random_model("gemma2", **SMALL | {"layers": 2} | ARCHITECTURES["gemma2"])
    changes = {"ppo.entropy_coefficient": 0.01, "ppo.updates": 2, "lora.targets": "auto"}
    run = train(tmp_path, path, REWARDS, changes, prompts=PROMPTS[2:], base=PPO)
    assert run.outcome.status == "completed", run.outcome
    for values in run.values.values():
        assert values["sampler/logprob_gap_mean"] < 5e-4
        assert values["optimizer/grad_norm"] > 0


def test_sft_on_a_context_that_wants_other_rotary_factors(random_model, tmp_path):
    """The engine that checks the adapter has 256 cells, for which llama.cpp would choose the
    factors for short contexts."""
    shape = SMALL | ARCHITECTURES["phi3"] | {"context": 512}
    shape["own"] = (("rope.scaling.original_context_length", 300),)
    path = random_model("phi3", **shape)
    run = teach(tmp_path, path, {"training.ctx": 400, "lora.targets": ["q", "ffn_gate"]})
    assert run.outcome.status == "completed", run.outcome
    [event] = [e for e in run.events if e.code == "export_checked"]
    assert event.data["gap"] < 1e-5 < event.data["change"]
    assert {name.split(".")[2] for name in exported(run.outcome.output)} == {"attn_qkv", "ffn_up"}


def with_template(model, target):
    """A copy of a base model that has a chat template."""
    reader = gguf.GGUFReader(model)
    writer = gguf.GGUFWriter(target, GgufFile(model).text("general.architecture"))
    for key, entry in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kind, inner = entry.types[0], entry.types[-1] if len(entry.types) > 1 else None
            writer.add_key_value(key, entry.contents(), kind, inner)
    writer.add_chat_template(
        TEMPLATE.replace("<|end|>", "<end_of_turn>\n")
        .replace("<|user|>", "<start_of_turn>user\n")
        .replace("<|bot|>", "<start_of_turn>model\n")
    )
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


@pytest.mark.full
def test_gemma_3_learns_from_a_reward(gemma3, tmp_path):
    """Gemma 3 270M, rewarded for the letter e."""
    model = with_template(gemma3, tmp_path / "gemma.gguf")
    counting = (
        "def score(batch, index, request):\n"
        "    text = request['completion']\n"
        "    return text.count('e') / max(len(text), 1)\n"
    )
    changes = CHANGES | {
        "training.rollout_weights": "f16",
        "training.lr": 2e-4,
        "lora.rank": 8,
        "lora.alpha": 16.0,
        "grpo.updates": 3,
        "grpo.group_size": 6,
    }
    run = train(tmp_path / "run", model, counting, changes, prompts=PROMPTS)
    assert run.outcome.status == "completed", run.outcome
    for values in run.values.values():
        assert values["sampler/logprob_gap_mean"] < 0.02
        assert values["optimizer/grad_norm"] > 0
    [event] = [e for e in run.events if e.code == "export_checked"]
    assert event.data["change"] > 0
