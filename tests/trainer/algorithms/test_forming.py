"""A judge's verdicts in the rewards of a run: a real program judges, through the whole loop."""

from __future__ import annotations

import pytest
from small_runs import rewards, train

# Gives the scores of TABLE to the answers in the order of their texts; fails where told to.
JUDGE = """
import json, sys
request = json.loads(sys.stdin.readline())
order = sorted(a["completion"] for a in request["answers"])
if {fail!r}:
    sys.exit("no opinion")
scores = [
    {{"id": a["id"], "score": order.index(a["completion"]) / 10, "explanation": "rank"}}
    for a in request["answers"]
]
print(json.dumps({{"scores": scores}}), flush=True)
"""


@pytest.fixture
def judged(tmp_path):
    def changes(*, fail=False, **more):
        (tmp_path / "judge.py").write_text(JUDGE.format(fail=fail), encoding="utf-8")
        return {
            "grpo.judge_weight": 0.5,
            "grpo.judge.type": "command",
            "grpo.judge.command": ["python3", "judge.py"],
            **{f"grpo.{key}": value for key, value in more.items()},
        }

    return changes


def test_a_verdict_is_added_with_its_weight(model, tmp_path, judged):
    recorder = train(tmp_path, model, rewards([1.0] * 4), judged())
    [group] = recorder.groups[1]
    texts = sorted({t.answer.text for t in group.trajectories})
    for t in group.trajectories:
        assert t.judge_term == pytest.approx(0.5 * texts.index(t.answer.text) / 10)
        assert t.reward == pytest.approx(1.0 + t.judge_term)
        assert (t.reward_raw, t.judge_words) == (1.0, "rank")
    values = recorder.values[1]
    assert recorder.status[1] == "trained", "the judge made the difference"
    assert values["judge/requests"] == 1.0
    terms = [t.judge_term for t in group.trajectories]
    assert values["reward/judge_mean"] == pytest.approx(sum(terms) / 4)
    assert "timing/judge_seconds" in values


def test_the_programs_own_weight_goes_before_the_configured_one(model, tmp_path, judged):
    program = "def score(batch, index, request):\n    return {'reward': 0.0, 'judge_weight': 2.0}\n"
    recorder = train(tmp_path, model, program, judged())
    [group] = recorder.groups[1]
    texts = sorted({t.answer.text for t in group.trajectories})
    terms = [t.judge_term for t in group.trajectories]
    assert terms == pytest.approx([0.2 * texts.index(t.answer.text) for t in group.trajectories])


def test_a_group_without_verdict_is_dropped_and_the_run_goes_on(model, tmp_path, judged):
    changes = judged(fail=True, max_judge_dropped_fraction=1.0)
    recorder = train(tmp_path, model, rewards([0.0, 1.0, 0.0, 2.0]), changes)
    assert recorder.status[1] == "skipped"
    [group] = recorder.groups[1]
    assert {t.skip_reason for t in group.trajectories} == {"judge_dropped"}
    assert [t.reward for t in group.trajectories] == [0.0, 1.0, 0.0, 2.0]
    assert recorder.values[1]["judge/dropped_group_fraction"] == 1.0
    assert len(recorder.messages("judge_dropped")) == 1


def test_too_many_groups_without_verdict_end_the_run(model, tmp_path, judged):
    recorder = train(tmp_path, model, rewards([0.0, 1.0, 0.0, 2.0]), judged(fail=True))
    assert recorder.outcome.status == "failed"
    assert "max_judge_dropped_fraction = 0.5" in recorder.outcome.message
