"""Makes cases.json: random inputs, and what TRL's GRPOTrainer computes from them.

    pip install trl==0.29.1 requests
    python tests/trainer/algorithms/trl_grpo/make.py

The tests read cases.json and need no TRL. No line of TRL is kept here: the installed
GRPOTrainer._compute_loss is called on padded random inputs in F64, with ``loss_type="dr_grpo"``.
Its trainer is a namespace of the settings that the function reads, and what would run a model gives
the log-probabilities of the case, which carry the gradient.

Inputs are padded batches (K, T), each the answers to one prompt; what lies behind an answer's end
is noise that TRL must mask out. Answers that are cut have no token in TRL's mask, as its option
``mask_truncated_completions`` has it; here they leave the group's mean too, which TRL's do not.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import torch
from trl.trainer.grpo_trainer import GRPOTrainer

F64 = torch.float64
COMMAND = "python tests/trainer/algorithms/trl_grpo/make.py"


class Shape(NamedTuple):
    """Lengths of the answers, the width they are padded to, and the configured limit."""

    lengths: list[int]
    longest: int
    max_new_tokens: int
    cut: tuple[int, ...] = ()


SHAPES = {
    "ragged": Shape([7, 1, 4, 6], 7, 16),
    "no padding": Shape([5, 5, 5, 5, 5, 5], 5, 5),
    "single tokens": Shape([1, 1, 1, 1, 1], 1, 3),
    "two cut": Shape([3, 8, 5, 8, 2, 6], 8, 8, cut=(1, 3)),
}
LEVELS = {
    "token": {"epsilon": 0.2, "epsilon_high": 0.28},
    # A mean over an answer moves less, so the range is narrower for both sides to be met.
    "sequence": {"epsilon": 0.05, "epsilon_high": 0.08},
}
BETAS = (0.0, 0.04)


def rounded(values: torch.Tensor) -> torch.Tensor:
    """Four decimals, so that the file holds exactly what TRL was given."""
    return torch.tensor([round(v, 4) for v in values.flatten().tolist()], dtype=F64).view_as(values)


def random_inputs(shape: Shape, seed: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    count, longest = len(shape.lengths), shape.longest

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=draw, dtype=F64)

    old = -2.0 * normal(count, longest).abs()
    inputs = {
        "rewards": normal(count),
        "old": old,
        "logprobs": old + 0.3 * normal(count, longest),
        "reference": old + 0.5 * normal(count, longest),
    }
    return {name: rounded(x) for name, x in inputs.items()}


def compute(shape: Shape, inputs: dict[str, torch.Tensor], settings: dict) -> dict:
    """The loss, its gradient in the log-probabilities, and TRL's own metrics of the step."""
    live = torch.tensor([i not in shape.cut for i in range(len(shape.lengths))])
    mask = (torch.arange(shape.longest) < torch.tensor(shape.lengths)[:, None]) & live[:, None]
    logprobs = inputs["logprobs"].clone().requires_grad_()
    metrics: dict[str, dict[str, list[float]]] = {"train": defaultdict(list)}
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, torch.zeros_like(logprobs)),
        _metrics=metrics,
        accelerator=SimpleNamespace(gather=lambda x: x, num_processes=1),
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None),
        beta=settings["beta"],
        current_gradient_accumulation_steps=1,
        epsilon_high=settings["epsilon_high"],
        epsilon_low=settings["epsilon"],
        importance_sampling_level=settings["importance_sampling_level"],
        loss_type="dr_grpo",
        max_completion_length=shape.max_new_tokens,
        model=SimpleNamespace(training=True),
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        use_vllm=False,
    )
    ids = torch.zeros_like(logprobs, dtype=torch.long)
    batch = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": torch.ones_like(ids[:, :1]),
        "completion_ids": ids,
        "completion_mask": mask.long(),
        "advantages": inputs["rewards"] - inputs["rewards"][live].mean(),
        "old_per_token_logps": inputs["old"],
        "ref_per_token_logps": inputs["reference"],
    }
    loss = GRPOTrainer._compute_loss(trainer, None, batch)
    outputs = {"loss": loss.item(), "gradient": torch.autograd.grad(loss, logprobs)[0].tolist()}
    names = {"kl": "kl", "clip_low": "clip_ratio/low_mean", "clip_high": "clip_ratio/high_mean"}
    return outputs | {k: metrics["train"][v][0] for k, v in names.items() if v in metrics["train"]}


def shortened(values: list | float) -> list | float:
    """Ten digits."""
    if isinstance(values, list):
        return [shortened(v) for v in values]
    return float(f"{values:.10g}")


def main() -> None:
    cases = []
    for seed, (name, level, beta) in enumerate(itertools.product(SHAPES, LEVELS, BETAS)):
        shape = SHAPES[name]
        settings = {"importance_sampling_level": level, "beta": beta} | LEVELS[level]
        inputs = random_inputs(shape, seed)
        outputs = compute(shape, inputs, settings)
        cases.append(
            {
                "name": f"{name}, {level}, beta {beta:g}",
                "settings": settings,
                "shape": shape._asdict(),
                "inputs": {k: shortened(v.tolist()) for k, v in inputs.items()},
                "outputs": {k: shortened(v) for k, v in outputs.items()},
            }
        )
    made = {"trl": version("trl"), "torch": torch.__version__, "command": COMMAND}
    lines = ",\n".join(json.dumps(case) for case in cases)
    text = f'{{"made": {json.dumps(made)},\n"cases": [\n{lines}\n]}}\n'
    Path(__file__).with_name("cases.json").write_text(text)


if __name__ == "__main__":
    main()
