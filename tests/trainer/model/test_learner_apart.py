"""What PPO asks of the learner: states, answers to prompts of their own, parameters beside the
adapter."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from small_runs import SMALL, adapter_on, learner_on

from trainer.errors import TrainingError
from trainer.gguf.file import GgufFile
from trainer.model.decoder import Decoder
from trainer.model.packing import pack_text

CPU = torch.device("cpu")
PROMPT = (72, 105, 44, 32)
ANSWERS = [np.array(ids, np.int32) for ids in ((87, 258), (3,), (5, 6, 7, 8, 9))]

make_learner = partial(learner_on, kind="adamw", max_grad_norm=1e9)


@pytest.fixture(scope="module")
def decoder(random_llama):
    return Decoder(GgufFile(random_llama(**SMALL)), CPU, context=48)


def negative_logprob(out):
    return -out.scores.logprobs.sum()


# -- scoring -------------------------------------------------------------------------------------


def states_by_hand(decoder, adapter, prompt, ids):
    """The states before each token of an answer, from its text alone."""
    text = pack_text([*prompt, *ids.tolist()], CPU)
    with torch.no_grad():
        return decoder.states(text, adapter)[len(prompt) - 1 : -1]


def test_states_are_those_before_each_token(decoder):
    learner = make_learner(decoder)
    scored = learner.score_apart(
        [PROMPT] * len(ANSWERS), ANSWERS, learner.adapter, keep=torch.float32
    )
    for ids, (logprobs, states) in zip(ANSWERS, scored, strict=True):
        expected = states_by_hand(decoder, learner.adapter, PROMPT, ids)
        torch.testing.assert_close(states, expected, rtol=0, atol=1e-5)
        assert not states.requires_grad
        # the log-probabilities are of these states
        rows = (states @ decoder.head.T).log_softmax(-1)
        chosen = rows.gather(1, torch.from_numpy(ids).long()[:, None])[:, 0]
        torch.testing.assert_close(logprobs, chosen, rtol=0, atol=1e-5)


def test_the_first_state_does_not_know_the_answer(decoder):
    learner = make_learner(decoder)
    firsts = [
        s[0]
        for _, s in learner.score_apart([PROMPT] * len(ANSWERS), ANSWERS, None, keep=torch.float32)
    ]
    for first in firsts[1:]:
        torch.testing.assert_close(first, firsts[0], rtol=0, atol=1e-6)


PROMPTS = [PROMPT, PROMPT[:2], (9, 8, 7, 6, 5)]


@pytest.mark.parametrize("micro_batch", [256, 14, 1])
def test_answers_to_prompts_of_their_own_are_scored_as_if_alone(decoder, micro_batch):
    learner = make_learner(decoder, micro_batch=micro_batch, temperature=0.7)
    together = learner.score_apart(PROMPTS, ANSWERS, learner.adapter, keep=torch.float32)
    for prompt, ids, (logprobs, states) in zip(PROMPTS, ANSWERS, together, strict=True):
        [(alone, own)] = learner.score_apart([prompt], [ids], learner.adapter, keep=torch.float32)
        torch.testing.assert_close(logprobs, alone, rtol=0, atol=1e-5)
        torch.testing.assert_close(states, own, rtol=0, atol=1e-5)


def test_no_answers_need_no_pass(decoder):
    learner = make_learner(decoder)
    assert learner.score_apart([], [], None) == []
    assert learner.score(PROMPT, [], None) == []


# -- accumulating --------------------------------------------------------------------------------


@pytest.mark.parametrize("micro_batch", [256, 14, 1])
def test_answers_to_prompts_of_their_own_add_up(decoder, micro_batch):
    apart, alone = make_learner(decoder, micro_batch=micro_batch), make_learner(decoder)
    total = apart.accumulate_apart(PROMPTS, ANSWERS, negative_logprob)
    parts = sum(
        alone.accumulate(prompt, [ids], negative_logprob)
        for prompt, ids in zip(PROMPTS, ANSWERS, strict=True)
    )
    assert total == pytest.approx(parts)
    for a, b in zip(apart.adapter.parameters(), alone.adapter.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-4)


def test_a_loss_may_hold_the_states_and_the_entropy(decoder):
    """Against plain autograd on whole texts; without ``entropy_gradient`` the entropy is a
    number alone."""
    reading = torch.linspace(-1.0, 1.0, decoder.architecture.width)

    def loss(out):
        return (out.states @ reading).sum() + out.scores.entropy.sum()

    learner = make_learner(decoder, temperature=0.7, entropy_gradient=True)
    total = learner.accumulate(PROMPT, ANSWERS, loss)
    plain = adapter_on(decoder)
    expected = torch.zeros(())
    for ids in ANSWERS:
        text = pack_text([*PROMPT, *ids.tolist()], CPU)
        states = decoder.states(text, plain)[len(PROMPT) - 1 : -1]
        rows = (states @ decoder.head.T / 0.7).log_softmax(-1)
        expected = expected + (states @ reading).sum() - (rows.exp() * rows).sum()
    expected.backward()
    assert total == pytest.approx(float(expected.detach()), rel=1e-5)
    for a, b in zip(learner.adapter.parameters(), plain.parameters(), strict=True):
        assert b.grad.norm() > 0.01
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-4)


# -- stepping ------------------------------------------------------------------------------------


def step_with(learner, gradient, learning_rate):
    """One step on a gradient that the test sets: ``gradient`` in every place of every factor."""
    before = learner.adapter.state()
    for p in learner.adapter.parameters():
        p.grad = torch.full_like(p, gradient)
    norm = learner.step(learning_rate)
    return before, learner.adapter.state(), norm


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_parameters_beside_the_adapter_make_the_same_steps(decoder, kind):
    learner = make_learner(decoder, kind=kind)
    head = torch.zeros(3, requires_grad=True)
    learner.train_too([head])
    head.grad = torch.full((3,), 0.5)
    _, _, norm = step_with(learner, 0.5, 0.01)
    move = {"adamw": -0.01, "sgd": -0.005}[kind]
    assert head.tolist() == pytest.approx([move] * 3)
    assert head.grad is None
    # the norm that is told is the adapter's
    assert norm == pytest.approx(0.5 * math.sqrt(learner.adapter.size))


def test_their_gradient_is_limited_by_itself(decoder):
    """A head whose gradient is a thousand times the limit leaves the adapter's step as it is."""
    learner = make_learner(decoder, kind="sgd", max_grad_norm=2.0)
    head = torch.zeros(4, requires_grad=True)
    learner.train_too([head])
    head.grad = torch.full((4,), 1000.0)
    small = 1.0 / math.sqrt(learner.adapter.size)
    before, after, norm = step_with(learner, small, 1.0)
    assert norm == pytest.approx(1.0)
    for name, value in before.items():
        torch.testing.assert_close(after[name], value - small)
    # a norm of 2 over four numbers
    assert head.tolist() == pytest.approx([-1.0] * 4)


def test_a_gradient_beside_the_adapter_that_is_not_finite_stops_before_the_step(decoder):
    learner = make_learner(decoder)
    head = torch.zeros(2, requires_grad=True)
    learner.train_too([head])
    before = learner.adapter.state()
    for p in learner.adapter.parameters():
        p.grad = torch.ones_like(p)
    head.grad = torch.tensor([0.0, math.inf])
    with pytest.raises(TrainingError, match="the gradient norm is inf after 0"):
        learner.step(0.1)
    assert all(torch.equal(v, before[n]) for n, v in learner.adapter.state().items())
    assert (learner.steps, head.tolist()) == (0, [0.0, 0.0])


def test_parameters_without_a_gradient_stay(decoder):
    """A head that no loss of this step reached."""
    learner = make_learner(decoder)
    head = torch.ones(2, requires_grad=True)
    learner.train_too([head])
    learner.accumulate(PROMPT, ANSWERS, negative_logprob)
    learner.step(0.1)
    assert head.tolist() == [1.0, 1.0]
