from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from small_runs import LENGTHS, PROMPT, answer, group, learner_on, sampled

from trainer.algorithms.objectives import GrpoObjective
from trainer.algorithms.optimise import run_pass, score_groups, shuffled
from trainer.errors import TrainingError


def nothing(*_):
    pass


def test_the_first_groups_old_comes_from_its_own_forward_and_equals_scoring_it(configured, decoder):
    config = configured()
    groups = [sampled(config, index=i) for i in range(3)]
    learner = learner_on(decoder)
    before = [learner.score(PROMPT, g.live_tokens, learner.adapter) for g in groups]
    score_groups(learner, groups, unscored=[1], with_reference=False, on_progress=nothing)
    assert [len(old) for old in groups[1].old] == [0] * 4
    objective = GrpoObjective(config.grpo, config.training, 0.0)
    order = [groups[1], groups[0], groups[2]]
    run_pass(learner, objective, [[g] for g in order], [0.1] * 3, nothing)
    for made, expected in zip(groups, before, strict=True):
        torch.testing.assert_close(made.old, expected, rtol=0, atol=1e-6)


def test_the_reference_is_the_base_without_the_adapter(configured, decoder):
    made, other = sampled(configured()), sampled(configured(), index=1)
    learner = learner_on(decoder)
    seen = []
    score_groups(
        learner,
        [made, other],
        unscored=[made.index],
        with_reference=True,
        on_progress=lambda *at: seen.append(at),
    )
    for tokens, reference in zip(made.live_tokens, made.reference, strict=True):
        text = [*PROMPT, *tokens.tolist()]
        logprobs = decoder.logits(text, None)[len(PROMPT) - 1 : -1].log_softmax(-1)
        picked = logprobs.gather(1, torch.from_numpy(tokens).long()[:, None])[:, 0]
        torch.testing.assert_close(reference, picked, rtol=0, atol=1e-5)
    assert seen == [(1, 2), (2, 2)]


def test_a_pass_makes_one_step_for_each_group_at_the_rate_given(configured, decoder):
    """Plain gradient descent with a tiny norm limit: each step moves by rate x limit."""
    config = configured()
    groups = [sampled(config, index=i) for i in range(2)]
    learner = learner_on(decoder)
    learner.max_grad_norm = 1e-3
    score_groups(learner, groups, unscored=[0], with_reference=False, on_progress=nothing)
    states = [learner.adapter.state()]
    objective = GrpoObjective(config.grpo, config.training, 0.0)
    steps, rates = [[g] for g in groups], [4.0, 2.0]
    stats = run_pass(
        learner, objective, steps, rates, lambda: states.append(learner.adapter.state())
    )
    moves = [
        math.sqrt(sum(float((b[n] - a[n]).square().sum()) for n in a))
        for a, b in itertools.pairwise(states)
    ]
    assert moves == pytest.approx([4e-3, 2e-3], rel=1e-3)
    assert (len(stats.norms), stats.tokens, learner.steps) == (2, 2 * sum(LENGTHS), 2)


def clipped(learner, config, count):
    """A group of ten tokens, two an answer, ``count`` of which lie outside the band on the side
    that the clip cuts."""
    rng = np.random.default_rng(0)
    answers = [answer(*rng.integers(0, 250, 2).tolist()) for _ in range(5)]
    made = group(config, [0.0, 0.0, 1.0, 2.0, 3.0], answers, prompt=PROMPT)
    scores = learner.score(PROMPT, made.live_tokens, learner.adapter)
    sign = made.advantages.sign().repeat_interleave(2)
    sign[count:] = 0.0
    made.old = list((torch.cat(scores) - sign * math.log(2.0)).split(2))
    return made


def guarded(decoder, config, count):
    learner = learner_on(decoder)
    made = clipped(learner, config, count)
    objective = GrpoObjective(config.grpo, config.training, 0.0)
    return run_pass(learner, objective, [[made]], [1e-6], nothing)


def test_the_guard_stops_a_pass_with_more_than_nine_tokens_in_ten_clipped(configured, decoder):
    config = configured({"grpo.group_size": 5})
    with pytest.raises(TrainingError, match=r"100% of the answer tokens .* lower training\.lr"):
        guarded(decoder, config, 10)


def test_nine_in_ten_go_on(configured, decoder):
    stats = guarded(decoder, configured({"grpo.group_size": 5}), 9)
    assert stats.clip_fraction == pytest.approx(0.9)


def test_a_loss_that_is_not_finite_stops_before_the_step(configured, decoder):
    config = configured()
    learner = learner_on(decoder)
    before = learner.adapter.state()
    made = sampled(config)
    made.old = learner.score(PROMPT, made.live_tokens, learner.adapter)
    made.old[2][1] = math.nan
    objective = GrpoObjective(config.grpo, config.training, 0.0)
    with pytest.raises(TrainingError, match=r"the loss is nan after 0 optimizer steps"):
        run_pass(learner, objective, [[made]], [0.1], nothing)
    after = learner.adapter.state()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert learner.steps == 0


def test_every_pass_has_its_own_order_and_the_seed_decides_it(configured):
    groups = [sampled(configured(), index=i) for i in range(12)]

    def order(*at):
        return [g.index for g in shuffled(groups, *at)]

    assert sorted(order(42, 1, 0)) == list(range(12))
    assert order(42, 1, 0) == order(42, 1, 0)
    orders = [order(42, 1, 0), order(42, 1, 1), order(42, 2, 0), order(43, 1, 0), list(range(12))]
    assert len({tuple(o) for o in orders}) == 5
