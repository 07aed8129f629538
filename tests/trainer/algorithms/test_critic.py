from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
import small_runs
import torch
from small_runs import PPO, SMALL, exported, rewards

from trainer.algorithms.critic import ProbeCritic, SharedCritic
from trainer.algorithms.gae import explained_variance
from trainer.algorithms.stopwatch import Stopwatch

CPU = torch.device("cpu")
ROOT = 2.0**0.5

train = partial(small_runs.train, base=PPO)


def probe(width, *, lr=0.01, epochs=1):
    return ProbeCritic(width, lr=lr, epochs=epochs, device=CPU)


def column(*values):
    return torch.tensor(values)[:, None]


# -- the probe -----------------------------------------------------------------------------------


def test_a_probe_knows_nothing_at_first():
    assert probe(3).values(torch.randn(5, 3)).tolist() == [0.0] * 5


def test_a_fit_by_hand():
    """States 0 and 2 are −1 and 1 once standardised. Returns 0 and √2 have the size
    √((0 + 2) / 2) = 1, so they are their own units. At V = 0 the gradient is mean((V − R) x) =
    −√½ for w and mean(V − R) = −√½ for b, and the first step of Adam is the learning rate, for b
    ten times that."""
    critic = probe(1, lr=0.01)
    critic.fit(column(0.0, 2.0), torch.tensor([0.0, ROOT]))
    assert critic.values(column(0.0, 2.0)).tolist() == pytest.approx([0.09, 0.11])


def test_what_a_probe_has_learnt_can_be_kept_and_taken_up():
    """Scaling, unit and moments included: both go on alike, to the last bit."""
    features = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    returns = features.sum(1) * 2.0
    one, other = probe(3, epochs=3), probe(3, epochs=3)
    one.fit(features, returns)
    other.load_state(copy.deepcopy(one.state()))
    for critic in (one, other):
        critic.fit(features * 1.5, returns)
    assert torch.equal(one.values(features), other.values(features))
    assert one.values(features).any()


def test_a_probe_that_has_not_learnt_yet_can_be_kept_too():
    one, other = probe(1), probe(1)
    other.load_state(one.state())
    other.fit(column(0.0, 2.0), torch.tensor([0.0, ROOT]))
    assert other.values(column(0.0, 2.0)).tolist() == pytest.approx([0.09, 0.11])


def test_values_are_in_units_of_the_first_returns():
    """A thousand times the rewards, a thousand times the values, and later returns do not change
    the unit."""
    critic, small = probe(1, lr=0.01, epochs=3), probe(1, lr=0.01, epochs=3)
    for size in (1.0, 5.0):
        small.fit(column(0.0, 2.0), torch.tensor([0.0, size]))
        critic.fit(column(0.0, 2.0), torch.tensor([0.0, 1000.0 * size]))
    expected = (1000.0 * small.values(column(0.0, 2.0))).tolist()
    assert critic.values(column(0.0, 2.0)).tolist() == pytest.approx(expected, rel=1e-5)


def test_returns_of_zero_do_not_set_the_unit():
    critic = probe(1, lr=0.01)
    critic.fit(column(0.0, 2.0), torch.zeros(2))
    critic.fit(column(0.0, 2.0), torch.tensor([0.0, ROOT]))
    assert critic.values(column(0.0, 2.0)).tolist() == pytest.approx([0.09, 0.11])


def test_features_are_scaled_by_the_root_of_the_width():
    """Two features that say the same: each learns as above, and is worth 1 / √2."""
    critic = probe(2, lr=0.01)
    states = column(0.0, 2.0).repeat(1, 2)
    critic.fit(states, torch.tensor([0.0, ROOT]))
    away = 2 * 0.01 / 2**0.5
    assert critic.values(states).tolist() == pytest.approx([0.1 - away, 0.1 + away])


def test_the_first_batch_decides_how_features_are_scaled():
    critic = probe(1, lr=0.01)
    critic.values(column(0.0, 2.0))
    critic.fit(column(4.0, 10.0), torch.tensor([0.0, ROOT]))
    # x = h − 1 = 3, 9: both gradients are negative, first steps as ever
    assert critic.values(column(4.0, 10.0)).tolist() == pytest.approx([0.13, 0.19])


def test_the_second_step_by_hand():
    """w and b have the gradients −√½ and then, with V = 0.09 and 0.11 where R is 0 and √2,
    (−0.09 + 0.11 − √2) / 2 and (0.09 + 0.11 − √2) / 2."""
    critic = probe(1, lr=0.01, epochs=2)
    critic.fit(column(0.0, 2.0), torch.tensor([0.0, ROOT]))

    def second(g):
        m = (0.9 * 0.1 * -(0.5**0.5) + 0.1 * g) / (1 - 0.9**2)
        v = (0.999 * 0.001 * 0.5 + 0.001 * g * g) / (1 - 0.999**2)
        return -m / v**0.5

    w = 0.01 + 0.01 * second((-0.09 + 0.11 - ROOT) / 2)
    b = 0.1 + 0.1 * second((0.09 + 0.11 - ROOT) / 2)
    assert critic.values(column(0.0, 2.0)).tolist() == pytest.approx([b - w, b + w])


def test_adams_moments_last_for_the_run():
    torch.manual_seed(0)
    states, returns = torch.randn(20, 4), torch.randn(20)
    twice, once = probe(4, epochs=3), probe(4, epochs=6)
    for _ in range(2):
        twice.fit(states, returns)
    once.fit(states, returns)
    assert torch.equal(twice.values(states), once.values(states))


def test_what_is_linear_in_the_states_is_learnt():
    torch.manual_seed(0)
    states = torch.randn(400, 16) * torch.logspace(-1, 1, 16) + 5.0
    standard = (states - states.mean(0)) / states.std(0)
    returns = 3.0 + standard @ torch.randn(16)
    critic = probe(16, lr=0.05, epochs=8)
    for _ in range(100):
        critic.fit(states, returns)
    assert explained_variance(critic.values(states), returns) > 0.99


@pytest.mark.parametrize("states", [column(3.0), column(3.0, 3.0, 3.0)], ids=["one", "all alike"])
def test_states_that_do_not_vary_leave_the_bias(states):
    critic = probe(1, lr=0.01)
    critic.fit(states, torch.full((len(states),), 2.0))
    assert critic.values(states).tolist() == pytest.approx([0.2] * len(states))  # units of 2


def test_a_feature_that_hardly_varies_is_not_blown_up():
    """Deviations 1 and 1e-6: the second is scaled as if it were 1% of their mean, so a later batch
    in which it jumps by 1 does not jump by a million."""
    critic = probe(2, lr=0.01)
    states = torch.tensor([[-1.0, 1e-6], [1.0, -1e-6]])
    critic.fit(states, torch.tensor([-1.0, 1.0]))
    off = critic.values(torch.tensor([[0.0, 1.0]])) - critic.values(torch.zeros(1, 2))
    assert abs(float(off)) == pytest.approx(0.01 / (0.01 * 0.5000005) / 2**0.5, rel=1e-3)


def test_values_carry_no_gradient_and_states_stay_as_they_are():
    critic, states = probe(3, epochs=4), torch.randn(6, 3)
    kept = states.clone()
    critic.fit(states, torch.randn(6))
    assert not critic.values(states.requires_grad_()).requires_grad
    assert torch.equal(states, kept)
    assert states.grad is None


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_narrow_states_give_nearly_the_same_values(kind):
    torch.manual_seed(0)
    states, returns = torch.randn(200, 8), torch.randn(200)
    wide, narrow = probe(8, epochs=50), probe(8, epochs=50)
    wide.fit(states, returns)
    narrow.fit(states.to(kind), returns)
    values = narrow.values(states.to(kind))
    assert values.dtype == torch.float32
    assert 0 < (values - wide.values(states)).abs().max() < 0.02


# -- the shared critic ---------------------------------------------------------------------------


def test_a_shared_critic_is_linear_in_states_that_it_moves():
    critic = SharedCritic(2, device=CPU)
    weight, bias = critic.parameters()
    states = torch.tensor([[1.0, 2.0], [3.0, -1.0]], requires_grad=True)
    assert critic.values(states).tolist() == [0.0, 0.0]
    with torch.no_grad():
        weight.copy_(torch.tensor([0.5, -1.0]))
        bias.fill_(0.25)
    values = critic.values(states)
    assert values.tolist() == [-1.25, 2.75]
    values.sum().backward()
    assert states.grad.tolist() == [[0.5, -1.0]] * 2
    assert (weight.grad.tolist(), bias.grad.item()) == ([4.0, 1.0], 2.0)


def test_a_shared_critic_is_not_fitted_apart():
    critic = SharedCritic(2, device=CPU)
    critic.fit(torch.randn(4, 2), torch.ones(4))
    assert critic.values(torch.randn(4, 2)).tolist() == [0.0] * 4


# -- in a run ------------------------------------------------------------------------------------

# The answers to one of two prompts are worth 1, those to the other 0.
BY_PROMPT = "def score(batch, index, request):\n    return float(index % 2)\n"
PREDICTABLE = {
    "ppo.rollout_batch_size": 16,
    "ppo.updates": 30,
    "ppo.sampling.max_new_tokens": 4,
    "training.lr": 0.001,
}


@pytest.fixture(scope="module")
def wide(random_llama):
    shape = {"width": 128, "heads": 8, "kv_heads": 8, "head_size": 16, "ff_width": 192}
    return random_llama(**SMALL | shape)


def explained(recorder):
    """The mean of the last five updates."""
    return np.mean([v["critic/explained_variance"] for v in recorder.values.values()][-5:])


def test_the_probe_explains_a_predictable_reward(wide, tmp_path):
    recorder = train(tmp_path, wide, BY_PROMPT, PREDICTABLE, prompts=["a", "b"])
    assert recorder.values[1]["critic/explained_variance"] == 0.0
    assert explained(recorder) > 0.5


def test_the_shared_critic_explains_a_predictable_reward(wide, tmp_path):
    changes = PREDICTABLE | {
        "ppo.critic.kind": "shared",
        "ppo.critic.value_loss_coefficient": 1.0,
        "training.lr": 0.01,
    }
    recorder = train(tmp_path, wide, BY_PROMPT, changes, prompts=["a", "b"])
    assert explained(recorder) > 0.5


SCORES = rewards([0.0, 3.0, 1.0, 6.0], [2.0, 0.0, 5.0, 1.0])


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_narrow_features_halve_their_memory_and_hardly_change_a_run(ending_model, tmp_path, kind):
    def result(dtype):
        changes = {"ppo.updates": 3, "ppo.critic.feature_dtype": dtype}
        recorder = train(tmp_path / dtype, ending_model, SCORES, changes)
        return recorder, exported(recorder.outcome.output)

    (wide_run, wide), (narrow_run, narrow) = result("f32"), result(kind)
    for update, values in wide_run.values.items():
        tokens = values["completions/length_mean"] * 4
        assert values["critic/feature_mib"] == tokens * SMALL["width"] * 4 / 2**20
        half = narrow_run.values[update]
        assert half["critic/feature_mib"] == values["critic/feature_mib"] / 2
        assert half["critic/value_mean"] == pytest.approx(values["critic/value_mean"], abs=5e-3)
    off = max(np.abs(narrow[name] - value).max() for name, value in wide.items())
    assert 0 < off < 0.1 * max(np.abs(v).max() for n, v in wide.items() if n.endswith("lora_b"))


def test_a_tokens_value_knows_nothing_of_the_token(ending_model, tmp_path):
    """All four answers of an update continue the same prompt: the state before their first tokens
    is one and the same, and that before the second knows the first."""
    changes = {"ppo.updates": 2, "ppo.sampling.seed": 3}
    config = small_runs.write_run(tmp_path, ending_model, SCORES, changes, base=PPO)
    with small_runs.opened(config) as session:
        session.loop.update(1)
        episodes = session.loop.method.collect(2, Stopwatch())
    assert len({e.tokens.tobytes() for e in episodes}) == 4
    firsts = torch.stack([e.features[0] for e in episodes])
    torch.testing.assert_close(firsts, firsts[:1].expand(4, -1), rtol=0, atol=1e-5)
    values = torch.stack([e.estimate.values[0] for e in episodes])
    assert values.abs().min() > 0.01
    torch.testing.assert_close(values, values[:1].expand(4), rtol=0, atol=1e-5)
    seconds = torch.stack([e.features[1] for e in episodes if len(e.tokens) > 1])
    assert (seconds - seconds[:1])[1:].abs().amax(dim=1).min() > 0.01
