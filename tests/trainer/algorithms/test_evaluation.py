"""The policy on held-out prompts: which answers, which numbers, when, and when it is enough."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_runs import DEFAULTS, PPO, Recorder, answer, train

from trainer.algorithms.evaluation import Evaluator
from trainer.algorithms.held_out_reward import HeldOutReward
from trainer.chat.messages import Message, Prompt, PromptLine
from trainer.config.common import EvaluationSection
from trainer.reward.program import RewardReply
from trainer.rollout.continuous import RolloutStopped

QUESTIONS = ["seven", "in eight", "nine", "ten"]
BY_TEXT = "def score(batch, index, request):\n    return sum(map(ord, request['completion'])) % 7\n"
BASES = pytest.mark.parametrize("base", [DEFAULTS, PPO], ids=["grpo", "ppo"])


# -- the evaluator by itself ---------------------------------------------------------------------


class Engine:
    """Writes its prompt's number of tokens as the answer; keeps the seeds that it was given."""

    def __init__(self):
        self.seeds = []

    def sample(self, prompts, seeds, *, on_progress, should_stop):
        self.seeds.append(seeds)
        for done in range(1, len(prompts) + 1):
            if should_stop():
                raise RolloutStopped
            on_progress(done, len(prompts))
        return [[answer(*range(len(p)), text=str(len(p)))] for p in prompts]


class Program:
    """Gives the rewards of an evaluation: a list, or one number for all of its answers."""

    def __init__(self, *rewards):
        self.rewards, self.asked = list(rewards), []

    def score(self, requests):
        self.asked.append([(r.prompt.question, r.completion) for r in requests])
        given = self.rewards.pop(0)
        values = given if isinstance(given, list) else [given] * len(requests)
        return [RewardReply(value, {"form": 0.5}, None) for value in values]


def prompts(count):
    """Prompt i has i + 1 tokens."""
    return [
        Prompt(PromptLine(i + 1, (Message("user", f"q{i}"),), {}, None, f"k{i}"), (0,) * (i + 1))
        for i in range(count)
    ]


def evaluator(*rewards, count=4, seed=42, stop_at=None, **section):
    settings = EvaluationSection.model_construct(data=Path("held.jsonl"), **section)
    monitor = Recorder(stop_at)
    subject = HeldOutReward(seed, prompts(count), Engine(), Program(*rewards), monitor)
    return Evaluator(settings, subject, monitor)


def test_the_numbers_of_an_evaluation():
    """Of 0, 1, 1, 4: mean 1.5, and the squared distances 2.25, 0.25, 0.25, 6.25 make 9 / 4."""
    held = evaluator([0.0, 1.0, 1.0, 4.0])
    held.evaluate(3)
    values = held.monitor.evaluations[3]
    assert {k: v for k, v in values.items() if k.startswith("eval/")} == {
        "eval/mean_reward": 1.5,
        "eval/reward_min": 0.0,
        "eval/reward_max": 4.0,
        "eval/reward_std": 1.5,
    }
    assert {"timing/generate_seconds", "timing/reward_seconds"} < values.keys()


def test_each_prompt_is_answered_once_and_told_as_an_evaluation():
    held = evaluator([0.0, 1.0], count=2)
    held.evaluate(3)
    assert held.subject.reward.asked == [[("q0", "1"), ("q1", "2")]]
    groups = held.monitor.held_out[3]
    assert [(g.group, g.prompt.key) for g in groups] == [(0, "k0"), (1, "k1")]
    told = [t for g in groups for t in g.trajectories]
    assert [(t.member, t.reward, t.reward_raw) for t in told] == [(0, 0.0, 0.0), (0, 1.0, 1.0)]
    assert {(t.trained, t.skip_reason, t.advantage) for t in told} == {(False, "evaluation", 0.0)}
    assert [t.parts for t in told] == [{"form": 0.5}] * 2
    assert held.monitor.calls == ["evaluate 1/2", "evaluate 2/2", "evaluation 3"]


def test_seeds_are_the_same_each_time_and_others_for_each_prompt_and_each_run():
    one, other = evaluator(1.0, 1.0), evaluator(1.0, seed=43)
    one.evaluate(0)
    one.evaluate(7)
    other.evaluate(0)
    first, second = one.subject.engine.seeds
    assert first == second
    assert [len(seeds) for seeds in first] == [1] * 4
    all_of_them = {s for [s] in first} | {s for [s] in other.subject.engine.seeds[0]}
    assert len(all_of_them) == 8


def test_what_is_due():
    assert [u for u in range(8) if evaluator(every_iterations=3).is_due(u)] == [0, 3, 6]
    assert all(evaluator().is_due(u) for u in range(8))


def test_the_best_one_is_the_first_that_no_other_exceeds():
    held = evaluator(0.5, 0.7, 0.7, 0.6)
    improved = []
    for update in range(4):
        held.evaluate(update)
        improved.append(held.improved)
    assert improved == [True, True, False, False]
    assert (held.best, held.best_update, held.last) == (0.7, 1, 3)
    assert not held.exhausted, "without patience it never is"


def test_patience_counts_evaluations_in_a_row_that_are_not_better():
    """0.5, then worse, better, equal, worse: two in a row, where one alone was forgiven."""
    held = evaluator(0.5, 0.4, 0.6, 0.6, 0.1, patience=2)
    exhausted = []
    for update in range(5):
        held.evaluate(update)
        exhausted.append(held.exhausted)
    assert exhausted == [False, False, False, False, True]


@pytest.mark.parametrize(("min_delta", "exhausted"), [(0.25, True), (0.1, False)])
def test_better_means_by_more_than_min_delta_over_the_best(min_delta, exhausted):
    """0.5, then two steps of 0.125: together 0.25, which is not more than 0.25."""
    held = evaluator(0.5, 0.625, 0.75, patience=2, min_delta=min_delta)
    for update in range(3):
        held.evaluate(update)
    assert held.exhausted is exhausted


def test_small_steps_add_up_to_a_better_one():
    held = evaluator(0.5, 0.625, 0.75, 0.875, patience=3, min_delta=0.25)
    for update in range(4):
        held.evaluate(update)
    assert (held.best, held.without_better) == (0.875, 0)


def test_negative_rewards_can_be_better_too():
    held = evaluator(-3.0, -2.0)
    held.evaluate(0)
    assert held.best == -3.0
    held.evaluate(1)
    assert held.best == -2.0


def test_an_evaluation_that_was_stopped_never_was():
    held = evaluator(1.0, stop_at="evaluate 2/4")
    with pytest.raises(RolloutStopped):
        held.evaluate(4)
    assert (held.last, held.best, held.monitor.evaluations) == (-1, None, {})


def test_where_it_stands_can_be_kept_and_taken_up():
    held, fresh = evaluator(0.5, 0.4, patience=2), evaluator(0.3, patience=2)
    held.evaluate(0)
    held.evaluate(1)
    fresh.load_state(held.state())
    assert (fresh.last, fresh.best, fresh.best_update, fresh.without_better) == (1, 0.5, 0, 1)
    fresh.evaluate(2)
    assert fresh.exhausted


# -- in a run ------------------------------------------------------------------------------------


def evaluated(folder, model, base, changes=(), *, questions=QUESTIONS, stop_at=None):
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"messages": [{"role": "user", "content": q}]}) for q in questions]
    (folder / "held.jsonl").write_text("\n".join(lines), encoding="utf-8")
    name = base["run.algorithm"]
    own = {"evaluation.data": "held.jsonl", f"{name}.updates": 5} | dict(changes)
    return train(folder, model, BY_TEXT, own, base=base, stop_at=stop_at)


def drawn(recorder, update):
    return [g.trajectories[0].answer.tokens.tolist() for g in recorder.held_out[update]]


@BASES
@pytest.mark.parametrize(
    ("every", "expected"), [(1, [0, 1, 2, 3, 4, 5]), (2, [0, 2, 4, 5]), (9, [0, 5])]
)
def test_before_the_first_update_after_every_nth_and_at_the_end(
    model, tmp_path, base, every, expected
):
    recorder = evaluated(tmp_path, model, base, {"evaluation.every_iterations": every})
    assert list(recorder.evaluations) == expected
    told = [c for c in recorder.calls if c.startswith(("evaluation", "trajectories", "metrics"))]
    assert told[:2] == ["evaluation 0", "trajectories 1"]
    assert told[-2:] == ["metrics 5", "evaluation 5"]


@BASES
def test_the_policy_that_is_measured_is_the_one_trained_so_far(model, tmp_path, base):
    """Under the same seeds the first answers are the base's, and later ones differ from them."""
    recorder = evaluated(tmp_path, model, base, {"training.lr": 0.05})
    unmoved = evaluated(tmp_path / "unmoved", model, base, {"training.lr": 1e-12})
    assert drawn(recorder, 0) == drawn(unmoved, 0)
    assert drawn(unmoved, 5) == drawn(unmoved, 0), "the same policy and seeds, the same answers"
    assert drawn(recorder, 5) != drawn(recorder, 0)


@BASES
def test_evaluation_changes_nothing_in_training(model, tmp_path, base):
    with_it = evaluated(tmp_path / "1", model, base)
    name = base["run.algorithm"]
    without = train(tmp_path / "2", model, BY_TEXT, {f"{name}.updates": 5}, base=base)
    strip = ("timing/", "throughput/", "system/")
    for update in range(1, 6):
        one, other = with_it.values[update], without.values[update]
        assert {k: v for k, v in one.items() if not k.startswith(strip)} == {
            k: v for k, v in other.items() if not k.startswith(strip)
        }


def test_seeds_are_not_those_of_training(model, tmp_path):
    """The prompt trained on, held out: an update's answers to it are not what is evaluated."""
    changes = {"training.lr": 1e-12, "grpo.updates": 3, "grpo.sampling.max_new_tokens": 12}
    recorder = evaluated(tmp_path, model, DEFAULTS, changes, questions=["hello"] * 3)
    held = {tuple(tokens) for tokens in drawn(recorder, 0)}
    seen = {
        tuple(t.answer.tokens.tolist())
        for groups in recorder.groups.values()
        for g in groups
        for t in g.trajectories
    }
    assert len(held) == 3, "one prompt three times, with three seeds"
    assert held & seen == set()


@pytest.mark.parametrize(
    ("most", "lines"),
    [(1, [1]), (2, [1, 6]), (3, [1, 4, 7]), (4, [1, 3, 6, 8]), (99, range(1, 11))],
)
def test_examples_are_spread_evenly_over_the_file(model, tmp_path, most, lines):
    """Of ten lines, place i of n is line ⌊10 i / n⌋ + 1."""
    questions = [f"q{n}" for n in range(10)]
    changes = {"evaluation.max_examples": most, "grpo.updates": 1}
    recorder = evaluated(tmp_path, model, DEFAULTS, changes, questions=questions)
    assert [g.prompt.line for g in recorder.held_out[0]] == list(lines)


def test_rewards_are_the_programs_own_and_not_penalised(model, tmp_path):
    """Every answer of six tokens is cut off, and would lose its reward in training."""
    penalty = {"max_penalty": 100.0, "buffer_tokens": 6}
    changes = {f"grpo.overlong_penalty.{key}": value for key, value in penalty.items()}
    recorder = evaluated(tmp_path, model, DEFAULTS, changes)
    assert recorder.values[1]["reward/mean"] < -50
    for values in recorder.evaluations.values():
        assert 0 <= values["eval/mean_reward"] < 7
    for groups in recorder.held_out.values():
        for t in (t for g in groups for t in g.trajectories):
            assert t.reward == sum(map(ord, t.answer.text)) % 7


@BASES
def test_a_run_that_gets_no_better_ends_early_and_is_complete(model, tmp_path, base):
    """Three evaluations without one that is better by 100: before the first update, which sets the
    mark, and then after the updates 1, 2 and 3."""
    changes = {"evaluation.patience": 3, "evaluation.min_delta": 100.0}
    recorder = evaluated(tmp_path, model, base, changes)
    assert list(recorder.evaluations) == [0, 1, 2, 3]
    assert (recorder.outcome.status, recorder.outcome.updates) == ("completed", 3)
    assert recorder.outcome.output is not None
    [message] = recorder.messages("early_stop")
    best = recorder.evaluations[0]["eval/mean_reward"]
    assert message == (
        f"stopped early: 3 evaluations in a row were not better than the {best:.3g} before the "
        f"first update"
    )


def test_a_wish_to_stop_is_heard_during_an_evaluation(model, tmp_path):
    recorder = evaluated(tmp_path, model, DEFAULTS, stop_at="metrics 2")
    assert (recorder.outcome.status, recorder.outcome.updates) == ("stopped", 2)
    assert list(recorder.evaluations) == [0, 1]


def test_a_stop_before_the_first_evaluation_ends_without_a_result(model, tmp_path):
    recorder = evaluated(tmp_path, model, DEFAULTS, stop_at="run_started")
    assert (recorder.outcome.status, recorder.outcome.updates) == ("stopped", 0)
    assert recorder.evaluations == {}
