"""Advantages and losses of PPO against TRL's own code.

trl_ppo/cases.json holds inputs and what TRL's PPOTrainer computed from them (trl_ppo/make.py says
how). Two conventions of TRL's are followed here, so that the numbers can be the same:

- Where the padding leaves room, TRL gives an answer one more state after its last token and puts
  the reward there, without a KL term. Here that is an answer one token longer. Ours stands at the
  last token; the cases "no padding" and "single tokens" have no such room and are both.
- TRL averages over all tokens of the batch (its masked mean): the plain mean of our terms.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from trainer.algorithms import losses
from trainer.algorithms.gae import generalised_advantages, token_rewards, whiten

DATA = json.loads(Path(__file__).with_name("trl_ppo").joinpath("cases.json").read_text())
CASES = {case["name"]: case for case in DATA["cases"]}


class Case:
    """One case on flat tokens: those of the answers, or the states that TRL values."""

    def __init__(self, name: str) -> None:
        case = CASES[name]
        self.settings, self.outputs = case["settings"], case["outputs"]
        self.padded = {k: torch.tensor(v) for k, v in (case["inputs"] | case["outputs"]).items()}
        self.longest = self.padded["values"].shape[1]
        self.lengths = torch.tensor(case["lengths"])
        self.states = (self.lengths + 1).clamp(max=self.longest)

    def tokens(self, name: str) -> torch.Tensor:
        return self.padded[name][torch.arange(self.longest) < self.lengths[:, None]]

    def of_states(self, padded: torch.Tensor) -> torch.Tensor:
        return padded[torch.arange(self.longest) < self.states[:, None]]

    def tokens_of_states(self, flat: torch.Tensor) -> torch.Tensor:
        held = torch.arange(self.longest) < self.lengths[:, None]
        return flat[self.of_states(held)]

    def penalty(self) -> torch.Tensor:
        old, reference = self.padded["logprobs"], self.padded["ref_logprobs"]
        k3 = self.settings["kl_estimator"] == "k3"
        kl = losses.k3(old, reference) if k3 else old - reference
        kl[torch.arange(self.longest) >= self.lengths[:, None]] = 0.0
        return self.of_states(self.settings["kl_coef"] * kl)


@pytest.fixture(params=CASES)
def case(request) -> Case:
    return Case(request.param)


def close(mine: torch.Tensor, theirs: torch.Tensor, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(mine, theirs, atol=tolerance, rtol=tolerance)


def test_token_rewards(case):
    mine = token_rewards(case.padded["scores"].double(), case.states, case.penalty())
    if case.settings["whiten_rewards"]:
        # TRL's option scales them over all states but leaves the mean: we have no such option.
        spread = whiten(mine)
        mine = mine.mean() + spread
    close(mine, case.of_states(case.padded["rewards"]))


def test_advantages_and_returns(case):
    mine = generalised_advantages(
        case.of_states(case.padded["rewards"]),
        case.of_states(case.padded["values"]),
        case.states,
        gamma=case.settings["gamma"],
        gae_lambda=case.settings["lam"],
    )
    close(mine.returns, case.of_states(case.padded["returns"]), 1e-5)
    close(whiten(case.tokens_of_states(mine.advantages)), case.tokens("advantages"), 1e-5)


@pytest.mark.parametrize("name", ["no padding", "single tokens", "undiscounted"])
def test_advantages_with_the_reward_at_the_last_token(name):
    """Our own convention: the same as TRL's where there is no room, and where nothing discounts,
    since then the additional state's value cancels out."""
    case = Case(name)
    old, reference = case.tokens("logprobs"), case.tokens("ref_logprobs")
    penalty = case.settings["kl_coef"] * (old - reference)
    rewards = token_rewards(case.padded["scores"].double(), case.lengths, penalty)
    mine = generalised_advantages(
        rewards,
        case.tokens("values"),
        case.lengths,
        gamma=case.settings["gamma"],
        gae_lambda=case.settings["lam"],
    )
    close(mine.returns, case.tokens("returns"), 1e-5)
    close(whiten(mine.advantages), case.tokens("advantages"), 1e-5)


def test_policy_loss_gradient_and_clip_fraction(case):
    logprobs = case.tokens("new_logprobs").requires_grad_()
    clip = case.settings["cliprange"]
    mine = losses.clipped_surrogate(
        logprobs,
        case.tokens("logprobs"),
        case.tokens("advantages"),
        case.lengths,
        low=clip,
        high=clip,
    )
    loss = mine.terms.mean()
    assert loss.item() == pytest.approx(case.outputs["pg_loss"], abs=1e-6)
    close(torch.autograd.grad(loss, logprobs)[0], case.tokens("pg_loss_gradient"))
    clipped = (mine.clipped_low | mine.clipped_high).float().mean().item()
    assert clipped == pytest.approx(case.outputs["pg_clipfrac"], abs=1e-6)


def test_value_loss_and_gradient(case):
    values = case.of_states(case.padded["vpred"]).requires_grad_()
    mine = losses.clipped_value_loss(
        values,
        case.of_states(case.padded["values"]),
        case.of_states(case.padded["returns"]),
        clip=case.settings["cliprange_value"],
    )
    assert mine.mean().item() == pytest.approx(case.outputs["vf_loss"], abs=1e-6)
    gradient = torch.autograd.grad(mine.mean(), values)[0]
    close(gradient, case.of_states(case.padded["vf_loss_gradient"]))


def test_the_cases_reach_what_they_are_for():
    cases = [Case(name) for name in CASES]
    assert {tuple(c.padded["values"].shape) for c in cases} >= {(4, 7), (3, 5), (6, 4), (5, 1)}
    assert sum(bool((c.lengths == 1).any()) for c in cases) >= 4
    assert {c.settings["gamma"] for c in cases} == {1.0, 0.95}
    assert {c.settings["lam"] for c in cases} == {1.0, 0.95, 0.5}
    # both losses clip some tokens and leave others, over the cases
    assert all(0 < c.outputs["pg_clipfrac"] < 1 for c in cases)
    for c in cases:
        gradient = c.of_states(c.padded["vf_loss_gradient"])
        assert (gradient != 0).any()
    assert any((c.of_states(c.padded["vf_loss_gradient"]) == 0).any() for c in cases)
