from __future__ import annotations

import json

import pytest
import reward_models


def test_every_line_of_the_conversation_is_shown(retrograd, project):
    done = retrograd("reward", "test", project(answer="5"), "--limit", "2")
    assert done.returncode == 0, done.stderr
    sent = [line for line in done.stdout.splitlines() if line.startswith("→")]
    received = [line for line in done.stdout.splitlines() if line.startswith("←")]
    assert len(sent) == len(received) == 2 * 4
    assert '"prompt": "2+3?"' in sent[0]
    assert '"completion": "5"' in sent[0]
    assert '"completion": ""' in sent[2]
    assert '"prompt": "4+4?"' in sent[4]
    assert '"reward": 1.0' in received[0]
    assert "8 answers scored, rewards from 0 to 1." in done.stdout
    assert "stderr:\nscored\n" in done.stdout


def test_a_program_that_cannot_tell_answers_apart_is_pointed_out(retrograd, project):
    done = retrograd("reward", "test", project())
    assert done.returncode == 0, done.stderr
    assert "9 answers scored, rewards from 0 to 0." in done.stdout
    assert "Every answer got the same reward" in done.stdout


def test_a_program_that_prefers_something_to_the_right_answer_is_pointed_out(retrograd, project):
    backwards = (
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    print(json.dumps({'reward': len(json.loads(line)['completion'])}))\n"
    )
    done = retrograd("reward", "test", project(reward=backwards, answer="5"))
    assert "`answer` field" in done.stdout


def test_a_program_that_breaks_the_protocol_ends_with_its_line_and_status_1(retrograd, project):
    done = retrograd("reward", "test", project(reward="print('loading \\x1b[31m model')"))
    assert done.returncode == 1
    assert "loading" in done.stderr
    assert "\x1b" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_prompt_that_no_program_could_be_asked_about_is_refused_as_in_a_run(retrograd, project):
    done = retrograd("reward", "test", project(text="x" * 9_000_000))
    assert done.returncode == 2
    assert "prompts.jsonl:1: as a request to the reward program this line has 900" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def scorer(tmp_path_factory):
    """The folder of a small classifier, with a window for the longest of the made-up answers."""
    folder = reward_models.train_chat_scorer(tmp_path_factory.mktemp("scorer"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 256}))
    return folder


def ppo_with_model(text, scorer, *, program):
    lines = text.splitlines()
    if not program:
        lines = [line for line in lines if not line.startswith("reward_")]
    return "\n".join([*lines, "[ppo.reward_model]", f'path = "{scorer}"', "weight = 0.5"])


def test_the_scores_of_a_reward_model_are_shown(retrograd, project, ppo_text, scorer):
    config = project(ppo_with_model(ppo_text, scorer, program=False), answer="5")
    done = retrograd("reward", "test", config, "--limit", "1")
    assert done.returncode == 0, done.stderr
    shown = [line for line in done.stdout.splitlines() if line.endswith("  to  2+3?")]
    assert len(shown) == 4
    for line in shown:
        reward, part = line.split(" (reward_model ")
        assert float(reward) == pytest.approx(0.5 * float(part.split(")")[0]), rel=1e-4)
    assert ": 5  to  2+3?" in shown[0]
    assert ": (an empty answer)  to  2+3?" in shown[2]
    assert "4 answers scored" in done.stdout
    assert "→" not in done.stdout, "a model is sent no lines"


@pytest.mark.full
def test_beside_a_program_both_scores_are_shown(retrograd, project, ppo_text, scorer):
    config = project(ppo_with_model(ppo_text, scorer, program=True), answer="5")
    done = retrograd("reward", "test", config, "--limit", "1")
    assert done.returncode == 0, done.stderr
    assert sum(line.startswith("→") for line in done.stdout.splitlines()) == 4
    first = next(line for line in done.stdout.splitlines() if ": 5  to  2+3?" in line)
    reward, rest = first.split(" (program 1, reward_model ")
    assert float(reward) == pytest.approx(1 + 0.5 * float(rest.split(")")[0]), rel=1e-4)


def test_a_run_without_rewards_has_none_to_try(retrograd, tmp_path):
    (tmp_path / "sft.toml").write_text(
        '[run]\nalgorithm = "sft"\n[model]\npath = "m.gguf"\n[output]\npath = "a.gguf"\n'
        '[sft]\ndata = "rows.jsonl"\n'
    )
    done = retrograd("reward", "test", tmp_path / "sft.toml")
    assert done.returncode == 2
    assert "which has no rewards" in done.stderr
