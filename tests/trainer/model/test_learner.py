from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from small_runs import SMALL, adapter_on, learner_on
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.errors import ConfigError, TrainingError
from trainer.gguf.file import GgufFile
from trainer.model.decoder import Decoder
from trainer.rollout.answers import SamplingSettings
from trainer.rollout.engine import RolloutEngine

CPU = torch.device("cpu")
PROMPT = (72, 105, 44, 32)
ANSWERS = [np.array(ids, np.int32) for ids in ((87, 258), (3,), (5, 6, 7, 8, 9))]


@pytest.fixture(scope="module")
def model(random_llama):
    return random_llama(**SMALL)


@pytest.fixture(scope="module")
def decoder(model):
    return Decoder(GgufFile(model), CPU, context=48)


make_adapter = adapter_on
make_learner = partial(learner_on, kind="adamw", max_grad_norm=1e9)


def negative_logprob(out):
    return -out.scores.logprobs.sum()


# -- scoring -------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [(72,), PROMPT], ids=["a prompt of one token", "of four"])
def test_scores_by_hand_from_the_raw_logits(decoder, prompt):
    """Token i is predicted by what stands before it: the first by the prompt's last token, the
    closing one by the token before."""
    learner = make_learner(decoder)
    scored = learner.score(prompt, ANSWERS, learner.adapter)
    for ids, mine in zip(ANSWERS, scored, strict=True):
        logits = decoder.logits([*prompt, *ids.tolist()], learner.adapter).double()
        expected = []
        for i, token in enumerate(ids.tolist()):
            row = logits[len(prompt) - 1 + i]
            expected.append(row[token] - row.exp().sum().log())
        torch.testing.assert_close(mine.double(), torch.stack(expected), rtol=0, atol=1e-5)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
def test_sampler_and_trainer_agree_at_any_temperature(model, decoder, temperature):
    """What the sampler says of its own draws is what the trainer says of them: the temperature
    divides the logits on both sides."""
    with RolloutEngine(
        model,
        ctx=48,
        concurrency=4,
        max_prompt_tokens=len(PROMPT),
        group_size=4,
        settings=SamplingSettings(temperature, 1.0, 8),
        exact=True,
        threads=1,
    ) as engine:
        [answers] = engine.sample([PROMPT], [[1, 2, 3, 4]])
    learner = make_learner(decoder, temperature=temperature)
    scored = learner.score(PROMPT, [a.tokens for a in answers], None)
    for answer, mine in zip(answers, scored, strict=True):
        np.testing.assert_allclose(mine.numpy(), answer.logprobs, atol=2e-5)


def test_scores_come_back_in_the_answers_order_however_they_are_packed(decoder):
    packed = make_learner(decoder)
    single = make_learner(decoder, fanout="off")
    expected = single.score(PROMPT, ANSWERS, None)
    torch.testing.assert_close(packed.score(PROMPT, ANSWERS, None), expected, rtol=0, atol=1e-5)
    assert [len(s) for s in expected] == [2, 1, 5]


def test_scoring_leaves_no_gradient_and_changes_nothing(decoder):
    learner = make_learner(decoder)
    before = learner.adapter.state()
    assert not learner.score(PROMPT, ANSWERS, learner.adapter)[0].requires_grad
    assert all(p.grad is None for p in learner.adapter.parameters())
    assert all(torch.equal(v, before[n]) for n, v in learner.adapter.state().items())


# -- accumulating --------------------------------------------------------------------------------


def test_accumulate_adds_up_over_groups(decoder):
    both, one, other = (make_learner(decoder, adapter=make_adapter(decoder)) for _ in range(3))
    total = both.accumulate(PROMPT, ANSWERS[:1], negative_logprob)
    total += both.accumulate(PROMPT[:2], ANSWERS[1:], negative_logprob)
    parts = one.accumulate(PROMPT, ANSWERS[:1], negative_logprob)
    parts += other.accumulate(PROMPT[:2], ANSWERS[1:], negative_logprob)
    assert total == pytest.approx(parts)
    factors = (learner.adapter.parameters() for learner in (both, one, other))
    for a, b, c in zip(*factors, strict=True):
        torch.testing.assert_close(a.grad, b.grad + c.grad)


def test_recomputing_activations_gives_every_factor_its_gradient(decoder):
    """A frozen base under re-entrant checkpointing would leave the factors without any."""
    kept = make_learner(decoder, adapter=make_adapter(decoder))
    recomputed = make_learner(decoder, adapter=make_adapter(decoder), recompute=True)
    for learner in (kept, recomputed):
        learner.accumulate(PROMPT, ANSWERS, negative_logprob)
    for a, b in zip(kept.adapter.parameters(), recomputed.adapter.parameters(), strict=True):
        assert a.grad.norm() > 0
        torch.testing.assert_close(b.grad, a.grad)


def kept_for_backward(learner):
    """How many numbers the forward half of a training pass saves."""
    saved = []

    def save(tensor):
        saved.append(tensor.numel())
        return tensor

    def loss(out):
        kept.append(sum(saved))
        return negative_logprob(out)

    kept = []
    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        learner.accumulate(PROMPT, ANSWERS, loss)
    return kept[0]


def test_recomputing_activations_keeps_far_fewer_of_them(decoder):
    recomputed = kept_for_backward(make_learner(decoder, recompute=True))
    assert recomputed < 0.2 * kept_for_backward(make_learner(decoder))


class LogitRows(TorchDispatchMode):
    """The most rows of any product with the vocabulary that is made inside."""

    def __init__(self, vocabulary):
        super().__init__()
        self.vocabulary = vocabulary
        self.most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function is torch.ops.aten.mm.default and result.shape[1] == self.vocabulary:
            self.most = max(self.most, len(result))
        return result


@pytest.mark.parametrize(("chunk", "rows"), [(2, 2), (7, 7), (512, 8)])
def test_logits_exist_for_one_chunk_of_answer_tokens_at_a_time(decoder, chunk, rows):
    learner = make_learner(decoder, chunk=chunk)
    with LogitRows(decoder.architecture.vocabulary) as seen:
        learner.accumulate(PROMPT, ANSWERS, negative_logprob)
    assert seen.most == rows


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_refused(decoder, bad):
    learner = make_learner(decoder)
    with pytest.raises(TrainingError, match=rf"the loss is {bad} after 0 .* Lower training\.lr"):
        learner.accumulate(PROMPT, ANSWERS, lambda out: bad - out.scores.logprobs.sum())
    assert all(p.grad is None for p in learner.adapter.parameters())


# -- stepping ------------------------------------------------------------------------------------


def step_with(learner, gradient, learning_rate):
    """One step on a gradient that the test sets: ``gradient`` in every place of every factor."""
    before = learner.adapter.state()
    for p in learner.adapter.parameters():
        p.grad = torch.full_like(p, gradient)
    norm = learner.step(learning_rate)
    return before, learner.adapter.state(), norm


def test_adamw_first_step_by_hand(decoder):
    """m/(1-β1) = g and √(v/(1-β2)) = |g|, so the step is lr · g / (|g| + 1e-8)."""
    before, after, _ = step_with(make_learner(decoder), -0.5, 0.01)
    for name, value in before.items():
        torch.testing.assert_close(after[name] - value, torch.full_like(value, 0.01))


def test_adamw_second_step_by_hand(decoder):
    learner = make_learner(decoder)
    step_with(learner, 1.0, 0.01)
    before, after, _ = step_with(learner, -2.0, 0.1)
    m = (0.9 * 0.1 * 1.0 + 0.1 * -2.0) / (1 - 0.9**2)
    v = (0.999 * 0.001 * 1.0 + 0.001 * 4.0) / (1 - 0.999**2)
    move = -0.1 * m / (math.sqrt(v) + 1e-8)
    for name, value in before.items():
        torch.testing.assert_close(
            after[name] - value, torch.full_like(value, move), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize(("kind", "move"), [("adamw", -0.01), ("sgd", -0.005)])
def test_weight_decay(decoder, kind, move):
    """θ ← θ − lr · 0.2 · θ, beside the gradient's own step (−lr·sign for AdamW, −lr·g for SGD)."""
    learner = make_learner(decoder, kind=kind, weight_decay=0.2)
    before, after, _ = step_with(learner, 0.5, 0.01)
    for name, value in before.items():
        torch.testing.assert_close(after[name], value * (1 - 0.01 * 0.2) + move)


def test_sgd_step_by_hand(decoder):
    before, after, _ = step_with(make_learner(decoder, kind="sgd"), 0.5, 0.01)
    for name, value in before.items():
        torch.testing.assert_close(after[name], value - 0.005)


def test_a_gradient_above_the_norm_limit_is_scaled_down_to_it(decoder):
    learner = make_learner(decoder, kind="sgd", max_grad_norm=0.5)
    whole = math.sqrt(learner.adapter.size)
    before, after, norm = step_with(learner, 3.0, 1.0)
    assert norm == pytest.approx(3.0 * whole)
    for name, value in before.items():
        torch.testing.assert_close(
            after[name] - value, torch.full_like(value, -0.5 / whole), rtol=1e-4, atol=1e-6
        )


def test_a_gradient_below_the_limit_is_left_alone(decoder):
    learner = make_learner(decoder, kind="sgd", max_grad_norm=1e3)
    before, after, _ = step_with(learner, 0.5, 1.0)
    assert all(torch.allclose(after[n], v - 0.5) for n, v in before.items())


def test_a_step_needs_a_gradient_of_every_factor(decoder):
    learner = make_learner(decoder)
    before = learner.adapter.state()
    first = next(learner.adapter.parameters())
    first.grad = torch.ones_like(first)
    with pytest.raises(
        TrainingError, match=r"13 trained tensors got no gradient, first blk\.0\.attn_q.*lora_b"
    ):
        learner.step(0.1)
    assert all(torch.equal(v, before[n]) for n, v in learner.adapter.state().items())
    assert learner.steps == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_stops_before_the_step(decoder, bad):
    learner = make_learner(decoder)
    before = learner.adapter.state()
    for p in learner.adapter.parameters():
        p.grad = torch.ones_like(p)
    first = next(learner.adapter.parameters())
    first.grad[0, 0] = bad
    with pytest.raises(TrainingError, match=rf"the gradient norm is {bad} after 0"):
        learner.step(0.1)
    assert all(torch.equal(v, before[n]) for n, v in learner.adapter.state().items())
    assert learner.steps == 0
    assert all(p.grad is None for p in learner.adapter.parameters())


def test_gradients_are_gone_after_a_step_and_steps_are_counted(decoder):
    learner = make_learner(decoder)
    for n in (1, 2):
        learner.accumulate(PROMPT, ANSWERS, negative_logprob)
        learner.step(1e-3)
        assert learner.steps == n
        assert all(p.grad is None for p in learner.adapter.parameters())


def test_small_steps_are_not_lost_to_rounding(decoder):
    """Factors and optimizer state are F32: fifty steps of 1e-6 move every number of B."""
    learner = make_learner(decoder, adapter=make_adapter(decoder, moved=False))
    for _ in range(50):
        learner.accumulate(PROMPT, ANSWERS, negative_logprob)
        learner.step(1e-6)
    for _, B in learner.adapter.factors.values():
        assert B.dtype == torch.float32
        assert (B != 0).float().mean() > 0.99


def test_one_step_lowers_the_loss_it_was_made_on(decoder):
    learner = make_learner(decoder)
    before = learner.accumulate(PROMPT, ANSWERS, negative_logprob)
    learner.step(1e-3)
    assert learner.accumulate(PROMPT, ANSWERS, negative_logprob) < before


# -- cutting -------------------------------------------------------------------------------------


def test_a_fallback_says_why(decoder):
    reasons = []
    learner = make_learner(decoder, micro_batch=6, on_fallback=reasons.append)
    learner.score(PROMPT, ANSWERS, None)
    # 4 + 4 + 1 + 0 rows are needed for all three
    assert len(reasons) == 1
    assert "3 answers on a prompt of 4 tokens need a pass of 9 tokens" in reasons[0]
    assert "micro_batch allows 6" in reasons[0]


def test_a_fanout_that_cannot_be_met_is_an_error(decoder):
    learner = make_learner(decoder, micro_batch=6, fanout=3)
    with pytest.raises(ConfigError, match="shared_prefix_fanout = 3 cannot be met"):
        learner.score(PROMPT, ANSWERS, None)


def test_passes_are_counted_for_training_alone_and_anew_each_time(decoder):
    learner = make_learner(decoder, fanout="off")
    for _ in range(2):
        with learner.counting() as counts:
            learner.score(PROMPT, ANSWERS, None)
            learner.accumulate(PROMPT, ANSWERS, negative_logprob)
        assert (counts.passes, counts.answers, counts.rows) == (3, 3, 5 + 4 + 8)
