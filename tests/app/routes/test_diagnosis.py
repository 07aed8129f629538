from __future__ import annotations

import pytest

from app.routes.diagnosis import statements
from app.store.models import Run
from app.store.queries.overview import Numbers
from trainer.health.resolve import guide_for

FINDING = {
    "metric": "policy/clip_fraction",
    "state": "watch",
    "value": 0.6123,
    "bound": "above 0.5",
    "since": 12,
    "what": "The policy moves too far.",
    "change": "Lower training.lr, or grpo.grpo_epochs.",
}


def said(numbers, algorithm="grpo", findings=(), params=None):
    run = Run(algorithm=algorithm, findings=list(findings), params=params or {})
    guide = {entry.name: entry for entry in guide_for(algorithm, run.params)}
    return statements(run, numbers, guide)


def numbers(main=(), *, last=None, start=None, evaluations=()):
    """``main`` are the last values, from update 1 on where ``start`` does not come before."""
    offset = 0 if start is None else 100
    return Numbers(
        last=last or {},
        start=list(enumerate(start if start is not None else main[:20], start=1)),
        main=[(offset + n, value) for n, value in enumerate(main, start=1)],
        evaluations=list(evaluations),
    )


def words(statement):
    return "".join(part.text for part in statement.text)


def noisy(level, count=20):
    """Around ``level``, by a hundredth up and down."""
    return [level + (0.01 if n % 2 else -0.01) for n in range(count)]


def test_nothing_is_said_of_a_run_without_numbers():
    assert said(numbers()) == []


def test_a_run_that_has_just_begun_is_not_judged():
    (early,) = said(numbers([0.1, 0.5, 0.9]))
    assert early.tone == "quiet"
    assert early.title == "It is too early to say."
    assert "there have been 3" in words(early)


def test_a_reward_that_rises_is_good_news_with_its_numbers():
    first, *_ = said(numbers(noisy(0.52) + noisy(0.64)))
    assert first.tone == "good"
    assert first.title == "Learning: the reward rose 0.120 in 20 updates."
    assert words(first) == "0.520 → 0.640, means of 20 updates each."
    assert first.metric == "reward/mean"


@pytest.mark.parametrize(
    ("evaluations", "told"),
    [
        (enumerate([0.52, 0.52, 0.63, 0.65]), "The held-out reward follows it (0.520 → 0.640)"),
        (enumerate([0.52, 0.52, 0.40, 0.42]), "reward does not follow (0.520 → 0.410): it may be"),
        ([(0, 0.52), (50, 0.41)], "The held-out reward went 0.520 → 0.410."),
    ],
)
def test_held_out_prompts_tell_whether_it_is_memorising(evaluations, told):
    first, *_ = said(numbers(noisy(0.5) + noisy(0.6), evaluations=evaluations))
    assert told in words(first)


@pytest.mark.parametrize("evaluations", [[], [0.52], [0.912, 0.911] * 20, [0.91, 0.9, 0.92, 0.89]])
def test_nothing_is_said_of_a_change_that_noise_explains(evaluations):
    told = numbers(noisy(0.5) + noisy(0.6), evaluations=enumerate(evaluations))
    assert words(said(told)[0]).endswith("means of 20 updates each.")


def test_a_reward_that_falls_comes_with_a_cure():
    first, *_ = said(numbers(noisy(0.64) + noisy(0.52)))
    assert first.tone == "warn"
    assert first.title == "The reward fell 0.120 in 20 updates."
    assert [part.text for part in first.text if part.key] == ["training.lr"]


def test_a_reward_that_has_risen_and_stays_is_good_news_too():
    first, *_ = said(numbers(noisy(0.8, 40), start=noisy(0.3)))
    assert first.tone == "good"
    assert first.title == "It has learnt: the reward went 0.300 → 0.800, and is steady now."


def test_a_reward_that_stays_where_it_was_is_called_steady():
    first, *_ = said(numbers(noisy(0.3, 40), start=noisy(0.3)))
    assert (first.tone, first.title) == ("quiet", "The reward is steady at 0.300.")


def test_a_fall_that_noise_may_explain_is_still_called_a_fall():
    wild = [1.0, 0.0] * 9
    first, *_ = said(numbers([*wild, 1.0, 1.0, *wild, 0.0, 0.0]))
    assert first.title == "The reward fell 0.100 in 20 updates, which its noise may explain."
    assert (first.tone, words(first)) == ("quiet", "0.550 → 0.450, means of 20 updates each.")


def test_for_a_loss_down_is_good():
    first, *_ = said(numbers(noisy(2.0) + noisy(1.5)), algorithm="sft")
    assert first.tone == "good"
    assert first.title == "Learning: the loss fell 0.500 in 20 updates."
    first, *_ = said(numbers(noisy(1.5) + noisy(2.0)), algorithm="sft")
    assert first.tone == "warn"


def test_a_finding_has_its_number_its_meaning_and_the_keys_to_change():
    found = next(s for s in said(numbers(noisy(0.3)), findings=[FINDING]) if s.tone == "warn")
    assert found.title == "The clip fraction is 0.612, above 0.5, since update 12."
    assert words(found) == "The policy moves too far. Lower training.lr, or grpo.grpo_epochs."
    assert [part.text for part in found.text if part.key] == ["training.lr", "grpo.grpo_epochs"]


def test_a_finding_about_the_reward_is_not_contradicted():
    finding = FINDING | {"metric": "reward/mean"}
    told = said(numbers(noisy(0.52) + noisy(0.64)), findings=[finding])
    assert [statement.metric for statement in told] == ["reward/mean"]
    assert told[0].tone == "warn"


def test_good_news_come_first_and_trouble_next():
    told = said(
        numbers(noisy(0.52) + noisy(0.64), last={"policy/total_loss": 0.0}), findings=[FINDING]
    )
    assert [statement.tone for statement in told] == ["good", "warn", "quiet"]


@pytest.mark.parametrize(
    ("algorithm", "why"), [("grpo", "centred in each group"), ("ppo", "whitened in each update")]
)
def test_a_loss_of_zero_is_explained(algorithm, why):
    last = {"policy/total_loss": -1e-9, "optimizer/grad_norm": 0.21}
    loss = next(
        s for s in said(numbers([0.5], last=last), algorithm) if s.metric == "policy/total_loss"
    )
    assert loss.title == "The loss reads 0.00, and that is normal."
    assert why in words(loss)
    assert "the gradient norm (0.210)" in words(loss)


def test_another_loss_says_as_little():
    told = said(numbers([0.5], last={"policy/total_loss": -0.03}))
    assert told[-1].title == "The loss reads −0.03, and that says nothing."


def test_groups_without_signal_are_worth_a_word_from_a_quarter_on():
    name = "batch/zero_std_group_fraction"
    assert not [s for s in said(numbers([0.5], last={name: 0.2})) if s.metric == name]
    (told,) = [s for s in said(numbers([0.5], last={name: 0.25})) if s.metric == name]
    assert told.title == "25 % of the groups had no signal in the last update."
    assert [part.text for part in told.text if part.key] == ["grpo.dynamic_sampling"]
    on = {"grpo": {"dynamic_sampling": {"max_resample_factor": 3}}}
    (told,) = [s for s in said(numbers([0.5], last={name: 0.25}), params=on) if s.metric == name]
    assert not [part for part in told.text if part.key]


def test_no_warning_signs_is_said_only_where_there_are_none():
    last = {"policy/clip_fraction": 0.12, "sampler/logprob_gap_mean": 0.0012}
    calm = said(numbers(noisy(0.3), last=last))[-1]
    assert (calm.tone, calm.title) == ("good", "No warning signs.")
    assert "None of the 2 numbers" in words(calm)
    assert "0.0012 nats" in words(calm)
    titles = [s.title for s in said(numbers(noisy(0.3), last=last), findings=[FINDING])]
    assert "No warning signs." not in titles
    assert "No warning signs." not in [s.title for s in said(numbers([0.3], last=last))]
