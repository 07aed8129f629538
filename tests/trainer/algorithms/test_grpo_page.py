"""What the page on GRPO says of whole runs and no other test shows."""

from __future__ import annotations

import re

import pytest
from small_runs import DEFAULTS, PPO, rewards, train

from trainer.errors import ConfigError

LIVE, DEAD = [0.0, 1.0, 0.0, 2.0], [1.0] * 4
DESCENT = {"training.optimizer": "sgd", "training.max_grad_norm": 1e9}

# Prefers one answer of a group to all others, or fails where told to.
JUDGE = """
import json, sys
request = json.loads(sys.stdin.readline())
if {fail!r}:
    sys.exit("no opinion")
best = min(a["completion"] for a in request["answers"])
scores = [
    {{"id": a["id"], "score": float(a["completion"] == best), "explanation": ""}}
    for a in request["answers"]
]
print(json.dumps({{"scores": scores}}), flush=True)
"""


@pytest.fixture
def judged(tmp_path):
    """Keys of a judge whose program lies beside the run's files."""

    def changes(*, fail=False):
        (tmp_path / "judge.py").write_text(JUDGE.format(fail=fail), encoding="utf-8")
        return {
            "grpo.judge_weight": 0.5,
            "grpo.judge.type": "command",
            "grpo.judge.command": ["python3", "judge.py"],
        }

    return changes


@pytest.mark.parametrize(
    ("key", "value"),
    [("grpo.critic.enabled", True), ("grpo.loss_type", "dr_grpo"), ("grpo.scale_rewards", "group")],
)
def test_a_critic_another_loss_and_scaled_rewards_cannot_be_asked_for(configured, key, value):
    with pytest.raises(
        ConfigError, match=rf"{re.escape(key.rpartition('.enabled')[0] or key)}\b.* is not a "
    ):
        configured({key: value})


@pytest.mark.parametrize("mode", ["persistent", "oneshot"])
def test_one_reward_program_serves_both_algorithms(model, tmp_path, mode):
    """It answers with the names of what it was asked, as the parts of its reward."""
    program = (
        "def score(batch, index, request):\n"
        "    return {'reward': index, 'parts': dict.fromkeys(request, 1.0)}\n"
    )
    oneshot = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps({"reward": len(request["completion"]), "parts": dict.fromkeys(request, 1.0)}))
sys.exit()
"""
    asked = []
    for base in (DEFAULTS, PPO):
        algorithm = base["run.algorithm"]
        recorder = train(
            tmp_path / algorithm,
            model,
            program if mode == "persistent" else oneshot,
            {f"{algorithm}.reward_mode": mode},
            base=base,
        )
        assert recorder.outcome.status == "completed", recorder.outcome.message
        asked.append([set(t.parts) for g in recorder.groups[1] for t in g.trajectories])
    assert asked[0] == asked[1]
    assert {"prompt", "completion"} < asked[0][0]


def test_25_updates_without_signal_stop_a_run_that_sets_no_limit(model, tmp_path):
    recorder = train(tmp_path, model, rewards(DEAD), {"grpo.updates": 40})
    assert (recorder.outcome.status, recorder.outcome.updates) == ("failed", 25)
    assert "too easy or too hard for this model" in recorder.outcome.message
    assert "retrograd check" in recorder.outcome.message


LEARN = {"grpo.updates": 12, "grpo.group_size": 16, "training.lr": 0.02}


def cut_off(recorder):
    """The share of cut answers in the first and in the last three updates."""
    shares = [v["completions/truncation_fraction"] for v in recorder.values.values()]
    return sum(shares[:3]) / 3, sum(shares[-3:]) / 3


def test_the_penalty_teaches_to_finish_in_time(ending_model, tmp_path):
    """The program pays every answer alike, so all that is learnt is to end before the limit."""
    penalty = {"grpo.overlong_penalty.buffer_tokens": 2, "grpo.overlong_penalty.max_penalty": 1.0}
    first, last = cut_off(train(tmp_path, ending_model, rewards(DEAD), LEARN | penalty))
    assert first > 0.2
    assert last < 0.05


def test_the_mask_teaches_nothing_from_answers_that_were_cut(ending_model, tmp_path):
    """The same run with the mask in place of the penalty: no update carries signal."""
    recorder = train(tmp_path, ending_model, rewards(DEAD), LEARN | {"grpo.mask_truncated": True})
    assert min(cut_off(recorder)) > 0.1
    assert set(recorder.status.values()) == {"skipped"}


TWICE = DESCENT | {"grpo.grpo_epochs": 2}
SEQUENCE = {"grpo.importance_sampling_level": "sequence"}
NARROW = SEQUENCE | {"grpo.clip_range_low": 3e-4, "grpo.clip_range_high": 4e-4}


def test_the_ratio_of_an_answer_hardly_meets_the_range_of_tokens(model, tmp_path):
    """The same answers and the same first step in both runs: ratios of tokens leave 1 by more than
    0.2, and their means over an answer do not."""
    changes = TWICE | {"training.lr": 0.5}
    token = train(tmp_path / "token", model, rewards(LIVE), changes).values[1]
    sequence = train(tmp_path / "sequence", model, rewards(LIVE), changes | SEQUENCE).values[1]
    assert token["policy/clip_fraction"] > 0.02
    assert sequence["policy/clip_fraction"] == 0.0
    assert 1.0 < sequence["policy/ratio_max"] < 1.28 < token["policy/ratio_max"]


def test_with_the_ranges_for_it_the_ratio_of_an_answer_is_clipped_far_more_often(model, tmp_path):
    """Steps so small that no token meets the usual range take answers out of the paper's."""
    changes = TWICE | {"training.lr": 0.002}
    token = train(tmp_path / "token", model, rewards(LIVE), changes).values[1]
    sequence = train(tmp_path / "sequence", model, rewards(LIVE), changes | NARROW).values[1]
    assert token["policy/clip_fraction"] == 0.0
    # the first of two passes clips nothing: at least two answers in ten in the second
    assert 0.1 <= sequence["policy/clip_fraction"] < 0.45


@pytest.mark.parametrize(
    ("cure", "status"),
    [
        ({}, "failed"),
        ({"grpo.grpo_epochs": 1}, "completed"),
        ({"grpo.clip_range_low": 0.02, "grpo.clip_range_high": 0.03}, "completed"),
    ],
    ids=["the paper's ranges", "one pass", "wider ranges"],
)
def test_short_answers_leave_the_narrow_ranges_at_once(model, tmp_path, cure, status):
    changes = TWICE | NARROW | {"training.lr": 0.01, "grpo.updates": 3}
    recorder = train(tmp_path, model, rewards(LIVE), changes | cure)
    assert recorder.outcome.status == status
    assert ("trust-region guard" in recorder.outcome.message) == (status == "failed")


def test_a_judge_that_must_not_fail_ends_the_run(model, tmp_path, judged):
    changes = judged(fail=True) | {"grpo.judge_failure": "fail"}
    recorder = train(tmp_path, model, rewards(LIVE), changes)
    assert recorder.outcome.status == "failed"
    assert 'judge_failure = "fail"' in recorder.outcome.message


def test_held_out_answers_are_scored_without_the_judge(model, tmp_path, judged):
    """The program pays 1 for anything: in training the judge adds to it, in evaluation nothing."""
    (tmp_path / "held.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "held out"}]}\n', encoding="utf-8"
    )
    changes = judged() | {"evaluation.data": "held.jsonl"}
    recorder = train(tmp_path, model, rewards(DEAD), changes)
    assert {t.reward for t in recorder.groups[1][0].trajectories} == {1.0, 1.5}
    held_out = [t for groups in recorder.held_out.values() for g in groups for t in g.trajectories]
    assert {(t.reward, t.judge_term) for t in held_out} == {(1.0, 0.0)}
    assert {v["eval/mean_reward"] for v in recorder.evaluations.values()} == {1.0}
