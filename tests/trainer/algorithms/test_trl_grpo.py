"""GRPO's loss and its gradient against TRL's own code.

trl_grpo/cases.json holds inputs and what TRL's GRPOTrainer computed from them with
``loss_type="dr_grpo"`` (trl_grpo/make.py says how). Each case is one group, which is one step here.
TRL computed in F64; the objective gets F32, as in a run.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from small_runs import answer, group

from trainer.algorithms.objectives import GrpoObjective, PassStats
from trainer.model.learner import PassOutput
from trainer.model.logprobs import TokenScores

DATA = json.loads(Path(__file__).with_name("trl_grpo").joinpath("cases.json").read_text())
CASES = {case["name"]: case for case in DATA["cases"]}


class Case:
    """One case, and the group that its answers make."""

    def __init__(self, name, configured) -> None:
        case = CASES[name]
        self.settings, self.shape, self.outputs = case["settings"], case["shape"], case["outputs"]
        self.config = configured(
            {
                "grpo.group_size": len(self.shape["lengths"]),
                "grpo.sampling.max_new_tokens": self.shape["max_new_tokens"],
                "grpo.mask_truncated": True,
                "grpo.importance_sampling_level": self.settings["importance_sampling_level"],
                "grpo.clip_range_low": self.settings["epsilon"],
                "grpo.clip_range_high": self.settings["epsilon_high"],
                "grpo.kl_coefficient": self.settings["beta"],
            }
        )
        lengths, cut = self.shape["lengths"], self.shape["cut"]
        answers = [answer(*range(n), finished=i not in cut) for i, n in enumerate(lengths)]
        self.group = group(self.config, case["inputs"]["rewards"], answers)
        self.group.old = self.live(case["inputs"]["old"])
        self.group.reference = self.live(case["inputs"]["reference"])
        self.logprobs = torch.cat(self.live(case["inputs"]["logprobs"])).requires_grad_()

    def live(self, padded):
        """The tokens of each answer that counts."""
        lengths = self.shape["lengths"]
        return [torch.tensor(padded[i][: lengths[i]]) for i in self.group.members]

    def loss(self, stats):
        """That of one pass over all answers that count."""
        objective = GrpoObjective(self.config.grpo, self.config.training, self.settings["beta"])
        members = self.group.members
        out = PassOutput(
            TokenScores(self.logprobs, torch.zeros(len(self.logprobs))),
            torch.empty(len(self.logprobs), 0),
            tuple(range(len(members))),
            torch.tensor([self.shape["lengths"][i] for i in members]),
        )
        return objective(self.group, out, stats)


@pytest.fixture(params=CASES)
def case(request, configured) -> Case:
    return Case(request.param, configured)


def test_loss_and_gradient(case):
    loss = case.loss(PassStats())
    assert loss.item() == pytest.approx(case.outputs["loss"], abs=1e-6, rel=1e-5)
    gradient = torch.autograd.grad(loss, case.logprobs)[0]
    theirs = torch.cat(case.live(case.outputs["gradient"]))
    torch.testing.assert_close(gradient, theirs, atol=1e-6, rtol=1e-5)


def test_answers_that_are_cut_have_no_gradient_in_trls_loss_either(case):
    for i in case.shape["cut"]:
        assert set(case.outputs["gradient"][i]) == {0.0}


def test_kl_and_clip_fractions(case):
    """TRL averages a token's numbers over the tokens, and an answer's over all answers."""
    stats = PassStats()
    case.loss(stats)
    assert stats.kl / stats.tokens == pytest.approx(case.outputs.get("kl", 0.0), rel=1e-5)
    if case.settings["importance_sampling_level"] == "token":
        shares = (stats.clipped_low / stats.tokens, stats.clipped_high / stats.tokens)
        theirs = (case.outputs["clip_low"], case.outputs["clip_high"])
        assert shares == pytest.approx(theirs, abs=1e-6)


def test_the_cases_reach_what_they_are_for(configured):
    cases = [Case(name, configured) for name in CASES]
    for level in ("token", "sequence"):
        mine = [c for c in cases if c.settings["importance_sampling_level"] == level]
        assert {len(c.shape["lengths"]) for c in mine} == {4, 5, 6}
        assert {c.settings["beta"] for c in mine} == {0.0, 0.04}
        assert any(c.shape["cut"] for c in mine)
        # the clip binds on both sides, and lets others through
        assert max(c.outputs["clip_low"] for c in mine) > 0
        assert max(c.outputs["clip_high"] for c in mine) > 0
        for c in mine:
            gradient = torch.cat(c.live(c.outputs["gradient"]))
            assert gradient.abs().max() > 1e-2
            assert c.settings["beta"] > 0 or (gradient == 0).any()
