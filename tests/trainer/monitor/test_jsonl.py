from __future__ import annotations

import dataclasses
import json
from datetime import datetime

import numpy as np
import pytest

from trainer.errors import ConfigError
from trainer.monitor import JsonlMonitor, Outcome
from trainer.rollout.answers import Answer

DONE = Outcome(status="completed", updates=1, output=None, message="")


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def records(folder):
    lines = (folder / "observe.jsonl").read_bytes().decode("utf-8").split("\n")
    assert lines[-1] == "", "the last line is complete"
    return [json.loads(line, parse_constant=refuse) for line in lines[:-1]]


def of_type(folder, kind):
    return [record for record in records(folder) if record["type"] == kind]


EXPECTED = [
    {
        "type": "run",
        "algorithm": "grpo",
        "model": "base.gguf",
        "params": {"training": {"lr": 1e-4, "device": None}, "lora": {"targets": ["q", "v"]}},
        "resumed_from_update": None,
        "run_id": "5d41402abc4b2a76b9719d911017c592",
    },
    {
        "type": "prompt",
        "key": "k1",
        "messages": [{"role": "user", "content": "2 + 3?"}],
    },
    {
        "type": "rollout",
        "update": 1,
        "group": 0,
        "member": 0,
        "prompt": "k1",
        "completion": "5",
        "tokens": 2,
        "truncated": False,
        "reward": 1.0,
        "reward_raw": 0.9,
        "judge_term": 0.1,
        "parts": {"format": 0.5},
        "advantage": 0.25,
        "trained": True,
        "skip_reason": None,
        "audit": ["verbose"],
        "judge_words": "well put",
    },
    {
        "type": "rollout",
        "update": 1,
        "group": 0,
        "member": 1,
        "prompt": "k1",
        "completion": "6",
        "tokens": 2,
        "truncated": False,
        "reward": 0.0,
        "reward_raw": 0.0,
        "judge_term": 0.0,
        "parts": {},
        "advantage": 0.25,
        "trained": False,
        "skip_reason": "zero_signal",
        "audit": [],
        "judge_words": None,
    },
    {
        "type": "update",
        "update": 1,
        "status": "trained",
        "metrics": {"reward/mean": 0.5},
    },
]


def test_one_update_gives_run_prompt_rollout_and_update_records(tmp_path, info, group, trajectory):
    monitor = JsonlMonitor(tmp_path / "deep" / "folder")
    monitor.run_started(info)
    answers = [
        trajectory(
            parts={"format": 0.5},
            judge_term=0.1,
            reward_raw=0.9,
            audit=("verbose",),
            judge_words="well put",
        ),
        trajectory("6", 0.0, member=1, trained=False, skip_reason="zero_signal"),
    ]
    monitor.trajectories(1, [group(*answers)])
    monitor.metrics(1, "trained", {"reward/mean": 0.5})
    monitor.run_finished(DONE)

    found = records(tmp_path / "deep" / "folder")
    for record in found:
        assert record.pop("v") == 1
        assert datetime.fromisoformat(record.pop("time")).utcoffset().total_seconds() == 0
    assert found == EXPECTED


def test_an_evaluation_is_its_answers_and_a_record_of_its_own(tmp_path, info, group, trajectory):
    """Texts are kept, whichever update it is, and the file is complete when it ends."""
    monitor = JsonlMonitor(tmp_path, every=5)
    monitor.run_started(info)
    held = trajectory("7", 0.5, advantage=0.0, trained=False, skip_reason="evaluation")
    monitor.evaluation(0, [group(held, key="h1")], {"eval/mean_reward": 0.5})
    monitor.evaluation(3, [group(held, key="h1")], {"eval/mean_reward": float("nan")})
    assert [record["type"] for record in records(tmp_path)] == [
        "run", "prompt", "rollout", "evaluation", "rollout", "evaluation"
    ]  # fmt: skip
    told = of_type(tmp_path, "rollout")
    assert [record["update"] for record in told] == [0, 3]
    for record in told:
        assert (record["completion"], record["prompt"], record["reward"]) == ("7", "h1", 0.5)
        assert (record["trained"], record["skip_reason"]) == (False, "evaluation")
    first, second = of_type(tmp_path, "evaluation")
    assert (first["update"], first["metrics"]) == (0, {"eval/mean_reward": 0.5})
    assert "nonfinite" not in first
    assert second["metrics"] == {"eval/mean_reward": None}
    assert second["nonfinite"] == ["eval/mean_reward"]


def test_where_a_run_goes_on_stands_in_its_record(tmp_path, info):
    JsonlMonitor(tmp_path).run_started(dataclasses.replace(info, resumed_from_update=5))
    assert of_type(tmp_path, "run")[0]["resumed_from_update"] == 5


def test_a_prompt_is_written_once_a_run_however_often_it_comes(tmp_path, info, group):
    monitor = JsonlMonitor(tmp_path)
    monitor.run_started(info)
    for update in (1, 2):
        monitor.trajectories(update, [group(key="a"), group(key="b")])
        monitor.metrics(update, "trained", {})
    assert [record["key"] for record in of_type(tmp_path, "prompt")] == ["a", "b"]


def test_an_update_can_be_read_while_the_run_goes_on(tmp_path, info, group):
    monitor = JsonlMonitor(tmp_path)
    monitor.run_started(info)
    monitor.trajectories(1, [group()])
    monitor.metrics(1, "skipped", {})
    assert of_type(tmp_path, "update")[0]["status"] == "skipped"


def test_a_second_run_adds_to_the_file(tmp_path, info, group):
    for _ in range(2):
        monitor = JsonlMonitor(tmp_path)
        monitor.run_started(info)
        monitor.trajectories(1, [group()])
        monitor.metrics(1, "trained", {})
        monitor.run_finished(DONE)
    kinds = [record["type"] for record in records(tmp_path)]
    assert kinds == ["run", "prompt", "rollout", "update"] * 2


def test_half_a_line_from_a_killed_run_spoils_no_later_record(tmp_path, info):
    (tmp_path / "observe.jsonl").write_bytes(b'{"v":1,"type":"upd')
    monitor = JsonlMonitor(tmp_path)
    monitor.run_started(info)
    lines = (tmp_path / "observe.jsonl").read_text().splitlines()
    assert lines[0] == '{"v":1,"type":"upd'
    assert json.loads(lines[1])["type"] == "run"


def test_numbers_that_are_not_finite_become_null_with_a_flag(tmp_path, info, group, trajectory):
    monitor = JsonlMonitor(tmp_path)
    monitor.run_started(info)
    odd = trajectory(reward=float("inf"), parts={"length": float("nan"), "format": 1.0})
    monitor.trajectories(1, [group(odd)])
    values = {
        "policy/entropy": float("nan"),
        "reward/mean": np.float32(0.5),
        "policy/kl": float("-inf"),
    }
    monitor.metrics(1, "trained", values)

    update = of_type(tmp_path, "update")[0]
    assert update["metrics"] == {"policy/entropy": None, "reward/mean": 0.5, "policy/kl": None}
    assert update["nonfinite"] == ["policy/entropy", "policy/kl"]
    rollout = of_type(tmp_path, "rollout")[0]
    assert rollout["reward"] is None
    assert rollout["parts"] == {"length": None, "format": 1.0}
    assert rollout["nonfinite"] == ["reward", "reward_raw", "parts.length"]


def test_answers_of_an_update_that_did_not_end_are_kept_as_not_trained_on(
    tmp_path, info, group, trajectory
):
    monitor = JsonlMonitor(tmp_path)
    monitor.run_started(info)
    monitor.trajectories(1, [group()])
    monitor.metrics(1, "trained", {})
    monitor.trajectories(
        2, [group(trajectory(), trajectory(trained=False, skip_reason="truncated"))]
    )
    monitor.run_finished(Outcome("failed", 1, None, "loss is not finite"))
    found = [
        (record["update"], record["trained"], record["skip_reason"])
        for record in of_type(tmp_path, "rollout")
    ]
    assert found == [(1, True, None), (2, False, "update_skipped"), (2, False, "truncated")]
    assert [record["update"] for record in of_type(tmp_path, "update")] == [1]


def test_texts_are_kept_for_every_nth_update_and_summaries_always(tmp_path, info, group):
    monitor = JsonlMonitor(tmp_path, every=2)
    monitor.run_started(info)
    for update in (1, 2, 3):
        monitor.trajectories(update, [group()])
        monitor.metrics(update, "trained", {})
    rollouts = of_type(tmp_path, "rollout")
    assert [record["completion"] for record in rollouts] == ["5", None, "5"]
    assert [record["reward"] for record in rollouts] == [1.0, 1.0, 1.0]


def test_long_texts_are_cut_between_characters_and_say_so(tmp_path, info, group, trajectory):
    monitor = JsonlMonitor(tmp_path, max_text_chars=3)
    monitor.run_started(info)
    monitor.trajectories(1, [group(trajectory("数学の答え"), trajectory("ok"), question="2 + 3?")])
    monitor.metrics(1, "trained", {})
    message = of_type(tmp_path, "prompt")[0]["messages"][0]
    assert message == {"role": "user", "content": "2 +", "content_chars": 6}
    cut, whole = of_type(tmp_path, "rollout")
    assert (cut["completion"], cut["completion_chars"]) == ("数学の", 5)
    assert whole["completion"] == "ok"
    assert "completion_chars" not in whole


@pytest.mark.parametrize(
    "text",
    ["\x1b[31m\x00", "line\u2028separator\u0085", "😀 é", 'quote " and \\ and\nnewline'],
)
def test_any_text_comes_back_from_the_file(tmp_path, info, group, trajectory, text):
    monitor = JsonlMonitor(tmp_path)
    monitor.run_started(info)
    monitor.trajectories(1, [group(trajectory(text))])
    monitor.metrics(1, "trained", {})
    assert of_type(tmp_path, "rollout")[0]["completion"] == text


def test_half_a_character_does_not_make_the_file_unreadable(tmp_path, info, group, trajectory):
    monitor = JsonlMonitor(tmp_path)
    monitor.run_started(info)
    monitor.trajectories(1, [group(trajectory("a\ud83d"))])
    monitor.metrics(1, "trained", {})
    assert of_type(tmp_path, "rollout")[0]["completion"] == "a?"


def test_an_answer_that_was_cut_off_is_marked(tmp_path, info, group, trajectory):
    answer = Answer(np.array([53], np.int32), np.array([-1.0], np.float32), False, "5")
    monitor = JsonlMonitor(tmp_path)
    monitor.run_started(info)
    monitor.trajectories(1, [group(trajectory(answer=answer, skip_reason="truncated"))])
    monitor.metrics(1, "trained", {})
    record = of_type(tmp_path, "rollout")[0]
    assert (record["truncated"], record["skip_reason"]) == (True, "truncated")


def test_a_folder_that_cannot_be_made_stops_the_run_before_it_begins(tmp_path, info):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match=r"observe\.jsonl cannot be written.*\[observe\]"):
        JsonlMonitor(tmp_path / "file").run_started(info)


def test_after_a_failed_write_the_next_update_is_complete_again(tmp_path, info, group):
    monitor = JsonlMonitor(tmp_path / "folder")
    monitor.run_started(info)
    (tmp_path / "folder").rename(tmp_path / "moved")
    monitor.trajectories(1, [group()])
    with pytest.raises(OSError, match="No such file"):
        monitor.metrics(1, "trained", {})
    (tmp_path / "moved").rename(tmp_path / "folder")
    monitor.trajectories(2, [group()])
    monitor.metrics(2, "trained", {})
    kinds = [(record["type"], record.get("update")) for record in records(tmp_path / "folder")]
    assert kinds == [("run", None), ("prompt", None), ("rollout", 2), ("update", 2)]
