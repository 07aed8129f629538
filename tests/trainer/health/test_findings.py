"""Hand-made runs; noise is drawn with fixed seeds."""

import math
import random
import time

import pytest

from trainer.health.findings import Finding, Watch, findings
from trainer.health.guide import GUIDE
from trainer.health.resolve import guide_for

GRPO = {"grpo": {"grpo_epochs": 1, "prompts_per_update": 4}}
PPO = {"ppo": {"ppo_epochs": 1, "minibatches": 4}}


def rows(**series):
    """Rows of metrics from series of equal length; ``reward_mean`` stands for reward/mean."""
    names = [name.replace("_", "/", 1) for name in series]
    return [
        (update, dict(zip(names, values, strict=True)))
        for update, values in enumerate(zip(*series.values(), strict=True), start=1)
    ]


def bad(rows, algorithm="grpo", params=GRPO):
    return [finding.metric for finding in findings(rows, algorithm, params)]


def announced(rows, algorithm="grpo", params=GRPO):
    watch = Watch(algorithm, params)
    return [(u, f.metric) for u, values in rows for f in watch.add(u, values)]


def healthy_run(seed, updates=200):
    """A run that learns to about 0.9 of a best answer's 1.0, as examples/addition does: its entropy
    falls to a twentieth and its groups come to score alike."""
    rng = random.Random(seed)
    done = [1 - math.exp(-u / 30) for u in range(updates)]
    return rows(
        reward_mean=[0.15 + 0.75 * d + rng.gauss(0, 0.07) for d in done],
        reward_max=[1.0] * updates,
        reward_std=[0.3 - 0.2 * d for d in done],
        batch_zero_std_group_fraction=[min(1, max(0, d + rng.gauss(0, 0.1))) for d in done],
        policy_entropy=[2 * (1 - d) + 0.1 + rng.gauss(0, 0.02) for d in done],
        policy_clip_fraction=[max(0, rng.gauss(0.03, 0.02)) for d in done],
        policy_kl_per_answer=[8 * d + abs(rng.gauss(0, 2)) for d in done],
        completions_truncation_fraction=[max(0, 0.55 - d + rng.gauss(0, 0.1)) for d in done],
        sampler_logprob_gap_mean=[0.005 + abs(rng.gauss(0, 0.01)) for d in done],
        critic_explained_variance=[min(1, 0.5 * d + rng.gauss(0, 0.1)) for d in done],
        policy_value_loss=[0.1 + d for d in done],
        audit_verbosity=[abs(rng.gauss(0, 0.05)) for d in done],
        audit_sycophancy=[0.0] * updates,
        audit_repetition=[abs(rng.gauss(0, 0.04)) for d in done],
        audit_words_mean=[20 + 20 * d for d in done],
    )


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("algorithm", "params"), [("grpo", GRPO), ("ppo", PPO)])
def test_a_healthy_run_is_never_warned(seed, algorithm, params):
    assert announced(healthy_run(seed), algorithm, params) == []


@pytest.mark.full
def test_a_slow_run_is_seldom_warned():
    # 0.2 to 0.6 in 200 updates under noise of 0.1, its entropy down to a quarter
    warned = 0
    for seed in range(200):
        rng = random.Random(seed)
        warned += bool(
            announced(
                rows(
                    reward_mean=[0.2 + 0.002 * u + rng.gauss(0, 0.1) for u in range(200)],
                    reward_max=[1.0] * 200,
                    policy_entropy=[2 - 0.0075 * u + rng.gauss(0, 0.1) for u in range(200)],
                    policy_clip_fraction=[0.01] * 200,
                )
            )
        )
    assert warned <= 200 * 0.15


def flat(*, reward=0.4, updates=60, **series):
    """A run whose reward does not rise, with other metrics beside it."""
    return rows(reward_mean=[reward] * updates, reward_max=[1.0] * updates, **series)


# A series that is bad for each rule, by metric and the rule's number.
SPANS = 60
BAD = {
    ("reward/mean", 0): [0.4] * SPANS,
    ("reward/mean", 1): [0.1] * 20 + [0.6] * 20 + [0.2] * 20,
    ("batch/zero_std_group_fraction", 0): [0.9] * SPANS,
    ("reward/std", 0): [0.0] * SPANS,
    ("audit/verbosity", 0): [0.4] * SPANS,
    ("audit/sycophancy", 0): [0.3] * SPANS,
    ("audit/repetition", 0): [0.2] * SPANS,
    ("sampler/logprob_gap_mean", 0): [0.2] * SPANS,
    ("policy/clip_fraction", 0): [0.6] * SPANS,
    ("policy/clip_fraction", 1): [0.0] * SPANS,
    ("policy/kl_per_answer", 0): [3.0] * 59 + [60.0],
    ("policy/kl_per_answer", 1): [30.0] * SPANS,
    ("policy/entropy", 0): [2.0] * 10 + [0.3] * 50,
    ("completions/truncation_fraction", 0): [0.97] * SPANS,
    ("completions/truncation_fraction", 1): [0.7] * SPANS,
    ("critic/explained_variance", 0): [-0.2] * SPANS,
    ("audit/words_mean", 0): [30.0] * 10 + [200.0] * 50,
}
BAD["sft/loss", 0] = [1.0] * 20 + [2.0] * 40
BAD_WITH_TARGET = {
    ("policy/kl_per_answer", 0): [13.0] * SPANS,
    ("policy/kl", 0): [0.11] * SPANS,
}
SEQUENCE = {"grpo": {"importance_sampling_level": "sequence"}}
SHARED = {"ppo": {"critic": {"kind": "shared"}}}
TARGETS = {"grpo": {"kl_schedule": {"target": 0.05}}, "ppo": {"kl_control": {"target": 6.0}}}


def each_rule():
    for algorithm in ("grpo", "ppo", "sft"):
        for params in ({}, SEQUENCE, SHARED, TARGETS):
            for metric in guide_for(algorithm, params):
                for number, rule in enumerate(metric.rules):
                    yield algorithm, params, metric.name, number, rule


def test_the_series_above_are_for_every_rule_there_is():
    reached = {rule.what for *_, rule in each_rule()}
    assert reached == {rule.what for metric in GUIDE for rule in metric.rules}


@pytest.mark.parametrize(("algorithm", "params", "name", "number", "rule"), list(each_rule()))
def test_each_rule_finds_its_fault_and_recovers(algorithm, params, name, number, rule):
    steered = rule.what.startswith("The penalty does not hold")
    series = (BAD_WITH_TARGET if steered else BAD)[name, number]
    others = {} if name.startswith("reward/m") else {"reward/mean": 0.4, "reward/max": 1.0}
    run = [(u, {"reward/max": 1.0, **others, name: v}) for u, v in enumerate(series, start=1)]

    found = {f.metric: f for f in findings(run, algorithm, params)}
    assert found[name].what == rule.what
    assert found[name].change == rule.change[algorithm]

    good = {"policy/clip_fraction": 0.1, "policy/entropy": 1.5, "reward/mean": 0.9}
    good |= {"critic/explained_variance": 0.5, "reward/std": 0.3, "audit/words_mean": 30.0}
    run += [(u, {**others, name: good.get(name, 0.01)}) for u in range(SPANS + 1, SPANS + 41)]
    assert name not in bad(run, algorithm, params)


@pytest.mark.parametrize("nothing", [math.nan, math.inf, -math.inf, None, "missing"])
def test_values_that_are_no_numbers_are_passed_over(nothing):
    values = [0.6, 0.6, nothing, 0.6, 0.6, nothing, 0.6]
    run = [
        (u, {} if v == "missing" else {"policy/clip_fraction": v})
        for u, v in enumerate(values, start=1)
    ]
    assert bad(run[:6]) == []  # four values so far
    (found,) = findings(run, "grpo", GRPO)
    assert (found.since, found.value) == (1, 0.6)


def test_what_was_known_stays_while_updates_are_skipped():
    run = [(u, {"policy/clip_fraction": 0.6}) for u in range(1, 6)]
    assert bad([*run, (6, {"reward/mean": 0.0}), (7, {})]) == ["policy/clip_fraction"]


@pytest.mark.parametrize("number", [0.0, 0.9, 40.0])
def test_one_strange_update_is_not_told(number):
    metrics = {m.name for m in GUIDE} - {"policy/kl_per_answer"}  # which may jump
    usual = dict.fromkeys(metrics, 0.1) | {"policy/entropy": 1.0, "reward/std": 0.3}
    run = [(u, usual | {"reward/mean": 0.01 * u}) for u in range(1, 41)]
    run[29] = (30, dict.fromkeys(metrics, number) | {"reward/mean": 0.3})
    assert announced(run) == []
    assert announced(run, "ppo", PPO) == []


def test_a_fall_of_entropy_is_fine_while_the_reward_rises():
    entropy = [2.0] * 10 + [0.3] * 50
    assert "policy/entropy" in bad(flat(policy_entropy=entropy))
    rising = rows(
        reward_mean=[0.1 + 0.01 * u for u in range(60)],
        reward_max=[1.0] * 60,
        policy_entropy=entropy,
    )
    assert bad(rising) == []


def test_dead_groups_are_fine_where_all_is_learnt():
    dead = [0.1] * 40 + [1.0] * 60
    learnt = rows(
        reward_mean=[0.2] * 20 + [0.95] * 80,
        reward_max=[1.0] * 100,
        batch_zero_std_group_fraction=dead,
    )
    assert bad(learnt) == []
    too_easy = flat(reward=1.0, updates=100, batch_zero_std_group_fraction=dead)
    assert bad(too_easy) == ["reward/mean", "batch/zero_std_group_fraction"]


def started_at(share, seed, answers=32, updates=60):
    """A run whose answers get 1 or 0, and that many of them 1 from the first update on."""
    rng = random.Random(seed)
    right = [sum(rng.random() < share for _ in range(answers)) / answers for _ in range(updates)]
    return rows(
        reward_mean=right,
        reward_max=[float(part > 0) for part in right],
        reward_std=[math.sqrt(part * (1 - part)) for part in right],
    )


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("algorithm", "params"), [("grpo", GRPO), ("ppo", PPO)])
def test_a_run_that_starts_near_its_best_need_not_rise(seed, algorithm, params):
    assert announced(started_at(0.97, seed), algorithm, params) == []


def test_a_run_that_starts_in_the_middle_has_to_rise():
    told = sum("reward/mean" in bad(started_at(0.6, seed)) for seed in range(20))
    assert told >= 8  # noise alone makes half a standard error for some of them


def test_a_run_whose_answers_never_got_more_is_told():
    nothing = rows(reward_mean=[0.0] * 60, reward_max=[0.0] * 60, reward_std=[0.0] * 60)
    assert announced(nothing) == [(54, "reward/mean")]


def test_a_single_step_an_update_clips_nothing_by_construction():
    run = flat(policy_clip_fraction=[0.0] * 60)
    assert "policy/clip_fraction" in bad(run)
    one_step = {"grpo": {"grpo_epochs": 1, "prompts_per_update": 1}}
    assert "policy/clip_fraction" not in bad(run, params=one_step)


def test_the_first_rule_that_holds_speaks():
    run = rows(policy_kl_per_answer=[3.0] * 5 + [60.0] * 10)
    (found,) = findings(run, "grpo", GRPO)
    assert found.what == "The policy has left the initial one all of a sudden."
    assert found.since == 6


def test_findings_come_in_order_of_importance():
    run = flat(
        completions_truncation_fraction=[0.7] * 60,
        audit_verbosity=[0.9] * 60,
        policy_clip_fraction=[0.6] * 60,
    )
    assert bad(run) == [
        "reward/mean",
        "audit/verbosity",
        "policy/clip_fraction",
        "completions/truncation_fraction",
    ]


@pytest.mark.parametrize("updates", [2, 6, 24])
def test_a_short_run_hears_that_nearly_all_of_its_answers_are_cut(updates):
    run = rows(completions_truncation_fraction=[0.94, 1.0] * (updates // 2))
    assert bad(run) == ["completions/truncation_fraction"]
    assert announced(run) == [(2, "completions/truncation_fraction")]
    assert bad(run[:1]) == []


def test_a_short_run_that_begins_with_half_of_its_answers_cut_may_still_learn():
    assert bad(rows(completions_truncation_fraction=[0.7, 0.6, 0.5, 0.6, 0.4, 0.3])) == []


def test_a_metric_is_told_once():
    run = rows(policy_clip_fraction=([0.1] * 10 + [0.9] * 10) * 4)
    # turns bad at 13, recovers at 23, is bad again at 33: not long enough ago
    assert announced(run) == [(13, "policy/clip_fraction")]


def test_a_metric_is_told_again_after_fifty_good_updates():
    run = rows(policy_clip_fraction=[0.9] * 5 + [0.1] * 50 + [0.9] * 5)
    # bad at 5 to 7 (three of the last five are above), and again from 58 on
    assert announced(run) == [(5, "policy/clip_fraction"), (58, "policy/clip_fraction")]
    assert announced(run[:40] + run[50:]) == [(5, "policy/clip_fraction")]


def test_shares_of_the_audit_are_listed_and_not_told():
    run = rows(audit_verbosity=[0.9] * 10)
    assert announced(run) == []
    assert bad(run) == ["audit/verbosity"]


def test_limits_of_the_audit_are_the_run_s():
    run = rows(audit_verbosity=[0.9] * 10)
    assert bad(run, params=GRPO | {"audit": {"verbosity_limit": 0.95}}) == []


def test_the_message_is_a_line():
    run = rows(policy_clip_fraction=[0.1] * 10 + [0.62] * 10)
    (found,) = findings(run, "grpo", GRPO)
    assert found == Finding(
        metric="policy/clip_fraction",
        state="watch",
        value=0.62,
        bound="above 0.5",
        since=11,
        what="The policy moves so far in one update that half of what it samples no longer counts.",
        change="Lower training.lr, or grpo.grpo_epochs.",
    )
    assert str(found) == (
        "policy/clip_fraction is 0.62, above 0.5, since update 11. The policy moves so far in one "
        "update that half of what it samples no longer counts. Lower training.lr, or "
        "grpo.grpo_epochs."
    )


def test_nothing_to_judge():
    assert findings([], "grpo", {}) == []
    assert findings([(1, {})], "ppo", {}) == []
    assert findings(flat(), "sft", {}) == []


def test_a_loss_that_falls_or_wanders_is_no_fault_and_one_that_rises_is():
    wandering = [1.0 + 0.3 * math.sin(u) for u in range(SPANS)]
    assert bad(rows(sft_loss=wandering), "sft", {}) == []
    assert bad(rows(sft_loss=[2.0 * 0.97**u for u in range(SPANS)]), "sft", {}) == []
    rising = rows(sft_loss=[1.0 * 1.02**u for u in range(SPANS)])
    [finding] = findings(rising, "sft", {})
    assert finding.change == "Lower training.lr, or raise training.warmup_steps."


def test_ten_thousand_updates_cost_the_same_each():
    run = [values for _, values in healthy_run(0)] * 50
    watch = Watch("ppo", PPO)

    def seconds(part):
        begun = time.perf_counter()
        for update, values in part:
            watch.add(update, values)
        return time.perf_counter() - begun

    numbered = list(enumerate(run, start=1))
    first, rest = seconds(numbered[:2000]), seconds(numbered[2000:])
    assert first + rest < 10  # about one second on a free machine
    assert rest < 4 * first * 3  # four times the updates; growth with their number would be more
