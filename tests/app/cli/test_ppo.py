"""PPO through the installed command, with the reward program of the examples."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def ppo(project, ppo_text, tiny, root):
    """A configuration that trains the bundled model; changes are (old, new) pairs of its text."""

    def write(*changes: tuple[str, str]):
        text = ppo_text
        for old, new in (("base.gguf", str(tiny)), *changes):
            assert old in text
            text = text.replace(old, new)
        reward = (root / "examples" / "smoke_rl_reward.py").read_text()
        return project(text + '\n[observe]\ndirectory = "out"\n', reward)

    return write


def records(folder, kind):
    lines = (folder / "out/observe.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["type"] == kind]


def test_a_program_written_after_the_protocol_serves_a_run_in_both_modes_alike(
    retrograd, ppo, tmp_path
):
    scored = []
    for mode in ("persistent", "oneshot"):
        config = ppo(('"oneshot"', f'"{mode}"'))
        done = retrograd("train", config, "--name", mode, "--seed", "7")
        assert done.returncode == 0, done.stderr
        lines = done.stderr.splitlines()
        assert f"run {mode}: PPO, 3 updates" in lines
        updates = [line for line in lines if line.startswith("update ")]
        assert [line.split(":")[0] for line in updates] == [f"update {n}/3" for n in (1, 2, 3)]
        assert all("KL/answer" in line and "dead groups" not in line for line in updates)
        assert (tmp_path / "out/adapter.gguf").read_bytes()[:4] == b"GGUF"
        assert records(tmp_path, "run")[-1]["params"]["ppo"]["sampling"]["seed"] == 7
        places = ("update", "group", "member", "completion", "reward")
        scored.append([tuple(a[key] for key in places) for a in records(tmp_path, "rollout")[-12:]])
    assert scored[0] == scored[1]
    assert [answer[:3] for answer in scored[0]] == [
        (update, group, 0) for update in (1, 2, 3) for group in range(4)
    ]
    # The program's scores for one-digit sums: 1 bare, 0.5 in a sentence, at most 0.2 if wrong.
    rewards = {answer[4] for answer in scored[0]}
    assert rewards <= {0.0, 0.05, 0.1, 0.15, 0.2, 0.5, 1.0}
    assert len(rewards) > 1


def test_a_check_samples_an_answer_to_each_prompt(retrograd, ppo, tmp_path):
    done = retrograd("check", ppo(), "--sample", "8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "critic's features" in done.stdout
    assert "8 answers from the base: mean" in done.stdout
    assert "group" not in done.stdout.replace(str(tmp_path), "")


def test_a_reward_program_can_be_tried(retrograd, ppo):
    done = retrograd("reward", "test", ppo(), "--limit", "2")
    assert done.returncode == 0, done.stderr
    assert "6 answers scored, rewards from 0 to 0." in done.stdout
    assert "where a whole batch of answers scores alike, PPO learns nothing" in done.stdout
