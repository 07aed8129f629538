"""Makes cases.json: random inputs, and what TRL's PPOTrainer computes from them.

    pip install trl==0.29.1
    TRL_EXPERIMENTAL_SILENCE=1 python make.py

The tests read cases.json and need no TRL. No line of TRL is kept here: the statements that compute
rewards, advantages and losses are cut out of the installed PPOTrainer.train, from one marker to
the next, and executed on padded random inputs in F64. Where an installed release has other
statements, a marker is not found and this program says which.

Inputs are padded batches (K, T); what lies behind an answer's end is noise that TRL must mask out.
TRL counts ``sequence_lengths`` from 0 (the place of the last token), and, where the padding leaves
room, gives an answer one more state than it has tokens: the reward stands there.
"""

from __future__ import annotations

import inspect
import json
import textwrap
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import torch
from trl.experimental.ppo import ppo_trainer

F64 = torch.float64
COMMAND = "TRL_EXPERIMENTAL_SILENCE=1 python tests/trainer/algorithms/trl_ppo/make.py"

# The first line of each stretch of statements, and the last.
ADVANTAGES = (
    "response_idxs = torch.arange(",
    "advantages = torch.masked_fill(advantages, padding_mask, 0)",
)
LOSSES = ("new_logprobs = torch.masked_fill(", "loss = pg_loss + args.vf_coef * vf_loss")
CLIPPED = ("pg_clipfrac = masked_mean(", ")")

PLAIN = {
    "gamma": 1.0,
    "lam": 0.95,
    "cliprange": 0.2,
    "cliprange_value": 0.2,
    "kl_coef": 0.05,
    "kl_estimator": "k1",
    "whiten_rewards": False,
    "vf_coef": 0.1,
}
CASES = {
    "ragged": (4, 7, [7, 1, 4, 6], {}),
    "discounted": (3, 5, [2, 5, 1], {"gamma": 0.95, "lam": 1.0, "cliprange_value": 0.5}),
    "short lambda": (6, 4, [1, 2, 3, 4, 3, 1], {"lam": 0.5, "cliprange": 0.1, "kl_coef": 0.3}),
    "discounted short lambda": (2, 9, [9, 8], {"gamma": 0.95, "lam": 0.5, "cliprange": 0.3}),
    "no padding": (3, 6, [6, 6, 6], {"gamma": 0.95, "cliprange_value": 0.1}),
    "single tokens": (5, 1, [1, 1, 1, 1, 1], {"lam": 1.0}),
    "undiscounted": (3, 8, [3, 8, 5], {"lam": 1.0, "kl_coef": 0.0}),
    # What differs from the plain formula: rewards scaled before the advantages are taken.
    "whitened rewards": (4, 5, [5, 2, 3, 1], {"whiten_rewards": True}),
    # What differs: the penalty is k3 and not the log-ratio.
    "k3 penalty": (3, 4, [4, 2, 1], {"kl_estimator": "k3", "gamma": 0.95}),
}


def statements(source: list[str], first: str, last: str) -> str:
    """The lines of ``source`` from the one that starts with ``first`` to the next with ``last``."""
    starts = [i for i, line in enumerate(source) if line.strip().startswith(first)]
    if len(starts) != 1:
        raise SystemExit(
            f"PPOTrainer.train of trl {version('trl')} has {len(starts)} lines that start with "
            f"{first!r}, and one is needed. Install the release named above."
        )
    for end in range(starts[0], len(source)):
        if source[end].strip().startswith(last):
            return textwrap.dedent("\n".join(source[starts[0] : end + 1]))
    raise SystemExit(f"trl {version('trl')}: no line starts with {last!r} after {first!r}.")


def rounded(values: torch.Tensor) -> torch.Tensor:
    """Four decimals, so that the file holds exactly what TRL was given."""
    return torch.tensor([round(v, 4) for v in values.flatten().tolist()], dtype=F64).view_as(values)


def random_inputs(count: int, longest: int, seed: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, dtype=F64)

    shape = (count, longest)
    logprobs, values = -2.0 * normal(*shape).abs(), normal(*shape)
    inputs = {
        "scores": 2.0 * normal(count),
        "logprobs": logprobs,
        "ref_logprobs": logprobs + 0.5 * normal(*shape),
        "values": values,
        "new_logprobs": logprobs + 0.3 * normal(*shape),
        "vpred": values + 0.4 * normal(*shape),
    }
    return {name: rounded(x) for name, x in inputs.items()}


def compute(
    source: list[str], inputs: dict[str, torch.Tensor], lengths: list[int], settings: dict
) -> dict[str, torch.Tensor]:
    """What TRL's statements leave in the names that are kept."""
    count, longest = inputs["values"].shape
    names = dict(vars(ppo_trainer)) | {k: v.clone() for k, v in inputs.items()}
    names |= {
        "args": SimpleNamespace(**settings),
        "responses": torch.zeros(count, longest, dtype=torch.long),
        "sequence_lengths": torch.tensor(lengths) - 1,
    }
    exec(statements(source, *ADVANTAGES), names)
    kept = {name: names[name] for name in ("rewards", "returns", "advantages")}
    policy = inputs["new_logprobs"].clone().requires_grad_()
    critic = inputs["vpred"].clone().requires_grad_()
    names |= {
        "micro_batch_inds": torch.arange(count),
        "mb_advantage": names["advantages"],
        "mb_logprobs": names["logprobs"],
        "mb_return": names["returns"],
        "mb_values": names["values"],
        "new_logprobs": policy,
        # One prompt token before the answers, and the axis of the value head.
        "context_length": 1,
        "vpred_temp": torch.cat([critic, torch.zeros(count, 1, dtype=F64)], 1)[..., None],
    }
    exec(statements(source, *LOSSES), names)
    exec(statements(source, *CLIPPED), names)
    kept |= {name: names[name].detach() for name in ("pg_loss", "vf_loss", "pg_clipfrac")}
    kept["pg_loss_gradient"] = torch.autograd.grad(names["pg_loss"], policy)[0]
    kept["vf_loss_gradient"] = torch.autograd.grad(names["vf_loss"], critic)[0]
    return kept


def shortened(values: list | float) -> list | float:
    """Ten digits."""
    if isinstance(values, list):
        return [shortened(v) for v in values]
    return float(f"{values:.10g}")


def main() -> None:
    source = inspect.getsource(ppo_trainer.PPOTrainer.train).splitlines()
    cases = []
    for seed, (name, (count, longest, lengths, changes)) in enumerate(CASES.items()):
        settings = PLAIN | changes
        inputs = random_inputs(count, longest, seed)
        outputs = compute(source, inputs, lengths, settings)
        cases.append(
            {
                "name": name,
                "settings": settings,
                "lengths": lengths,
                "inputs": {k: shortened(v.tolist()) for k, v in inputs.items()},
                "outputs": {k: shortened(v.tolist()) for k, v in outputs.items()},
            }
        )
    made = {"trl": version("trl"), "torch": torch.__version__, "command": COMMAND}
    lines = ",\n".join(json.dumps(case) for case in cases)
    text = f'{{"made": {json.dumps(made)},\n"cases": [\n{lines}\n]}}\n'
    Path(__file__).with_name("cases.json").write_text(text)


if __name__ == "__main__":
    main()
