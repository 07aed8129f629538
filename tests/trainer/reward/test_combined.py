"""A reward program, a reward model, and the sum of both, as a configuration's section asks."""

import sys

import pytest
import torch
from left_over import left
from reward_models import requests

from trainer.config import load_config
from trainer.errors import ConfigError, RewardError
from trainer.reward.combined import open_reward

CPU = torch.device("cpu")
ANSWERS = ("It is red.", "It is blue.", "red", "")
# One point for each word, in oneshot mode; a second argument names a part.
WORDS = """\
import json, sys
for line in sys.stdin:
    words = len(json.loads(line)["completion"].split())
    print(json.dumps({"reward": words, "parts": {sys.argv[1]: words * 10}}))
"""


RUN = """\
[run]
algorithm = "{algorithm}"
[model]
path = "base.gguf"
[output]
path = "adapter.gguf"
[{algorithm}]
prompts = "prompts.jsonl"
updates = 1
kl_coefficient = 0.0
"""
ALGORITHMS = {
    "grpo": """\
prompts_per_update = 1
group_size = 4
grpo_epochs = 1
clip_range_low = 0.2
clip_range_high = 0.2
""",
    "ppo": """\
rollout_batch_size = 4
ppo_epochs = 1
clip_range = 0.2
""",
}
SAMPLING = """\
[{algorithm}.sampling]
temperature = 1.0
top_p = 1.0
max_new_tokens = 8
seed = 1
"""


@pytest.fixture
def section(tmp_path, chat_scorer):
    """A section of a configuration with a program (its part's name is given), a model, or both."""
    (tmp_path / "words.py").write_text(WORDS)

    def make(part=None, weight=None, folder=chat_scorer, mode="oneshot", algorithm="grpo"):
        lines = [RUN, ALGORITHMS[algorithm]]
        if part is not None:
            lines += [f'reward_command = ["python3", "words.py", "{part}"]\n']
            lines += [f'reward_mode = "{mode}"\nreward_timeout_seconds = 20\n']
        lines += [SAMPLING]
        if weight is not None:
            lines += [f'[{algorithm}.reward_model]\npath = "{folder}"\nweight = {weight}\n']
        file = tmp_path / "run.toml"
        file.write_text("".join(lines).replace("{algorithm}", algorithm))
        return load_config(file).rollout

    return make


@pytest.fixture
def opened(tmp_path):
    def open_(section, **options):
        return open_reward(section, folder=tmp_path, device=CPU, judge_allowed=False, **options)

    return open_


@pytest.fixture
def replies(opened):
    def score(section):
        with opened(section) as reward:
            return reward.score(requests("Paint it blue, please.", *ANSWERS))

    return score


def test_a_program_alone(section, replies):
    found = replies(section(part="words"))
    assert [reply.reward for reply in found] == [3.0, 3.0, 1.0, 0.0]
    assert found[0].parts == {"words": 30.0}


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_model_alone(section, replies, algorithm):
    found = replies(section(weight=2.0, algorithm=algorithm))
    assert found[0].reward > found[1].reward + 4
    assert [reply.reward for reply in found] == [2 * r.parts["reward_model"] for r in found]
    assert set(found[0].parts) == {"reward_model"}


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_both_are_added_with_the_models_weight(section, replies, algorithm):
    found = replies(section(part="words", weight=0.25, algorithm=algorithm))
    scores = [reply.parts["reward_model"] for reply in replies(section(weight=1.0))]
    # 3, 3, 1 and 0 words, and a quarter of the score
    assert [reply.reward for reply in found] == [
        3 + scores[0] / 4,
        3 + scores[1] / 4,
        1 + scores[2] / 4,
        0 + scores[3] / 4,
    ]
    assert found[2].parts == {"words": 10.0, "program": 1.0, "reward_model": scores[2]}


def test_in_the_progress_of_both_a_score_is_half_an_answer(section, opened):
    seen = []
    with opened(section(part="words", weight=1.0)) as reward:
        reward.score(requests("Hi", *ANSWERS), lambda done, total: seen.append((done, total)))
    # the program's 1, 2, 3 and 4 scores, and the model's 4 at once
    assert seen == [(0, 4), (1, 4), (1, 4), (2, 4), (4, 4)]


@pytest.mark.parametrize("part", ["reward_model", "program"])
def test_a_part_with_a_name_that_is_taken_is_refused(section, replies, part):
    with pytest.raises(RewardError) as caught:
        replies(section(part=part, weight=1.0))
    assert f'a part called "{part}" for the answer "It is red." (line 3' in str(caught.value)
    assert replies(section(part=part))[0].parts == {part: 30.0}


def test_the_program_ends_when_the_model_cannot_be_opened(section, opened, tmp_path):
    (tmp_path / "words.py").write_text("import sys; sys.stdin.read()")
    with pytest.raises(ConfigError, match="there is no such folder"):
        opened(section(part="x", weight=1.0, folder=tmp_path / "none", mode="persistent"))
    assert left() == []


def test_the_programs_words_are_kept(section, opened, tmp_path):
    (tmp_path / "words.py").write_text(WORDS + "print('loaded', file=sys.stderr)")
    with opened(section(part="words", weight=1.0)) as reward:
        reward.score(requests("Hi", "red"))
        assert reward.stderr_tail() == "loaded\n"


def test_notes_of_the_model_arrive(section, opened, pair_scorer):
    notes = []
    opened(section(weight=1.0, folder=pair_scorer), on_note=notes.append).close()
    assert len(notes) == 1


def test_neither_is_a_mistake_of_the_caller(section, opened):
    nothing = section(weight=1.0).model_copy(update={"reward_model": None})
    with pytest.raises(ValueError, match="neither"):
        opened(nothing)


def test_nothing_is_written_to_the_terminal(section, replies, capfd):
    """The program is started after tokenizers have used their threads, of which they warn."""
    replies(section(weight=1.0))
    replies(section(part="words", weight=1.0))
    assert tuple(capfd.readouterr()) == ("", "")
    assert "transformers" in sys.modules
