"""The programs that the documentation shows, and what opening one refuses."""

import re
from pathlib import Path

import pytest

from trainer.errors import RewardError
from trainer.reward.program import open_reward_program

DOCS = Path(__file__).parents[3] / "docs" / "reward-programs.md"


def documented(name):
    """The code block that the page introduces with the file name `name`."""
    page = DOCS.read_text(encoding="utf-8")
    return re.search(rf"`{re.escape(name)}`.*?```python\n(.*?)```", page, re.S)[1]


@pytest.mark.parametrize(
    ("name", "mode"), [("reward.py", "persistent"), ("reward_oneshot.py", "oneshot")]
)
def test_documented_programs_work(name, mode, open_program, requests_of):
    with open_program(documented(name), mode=mode) as program:
        for _ in range(2):
            replies = program.score(requests_of("4", "It is 4.", "five", "", answer="4"))
            assert [reply.reward for reply in replies] == [1.0, 0.5, 0.0, 0.0]
    if mode == "persistent":
        assert replies[1].parts == {"correct": 1.0, "bare": 0.0}


@pytest.mark.parametrize("mode", ["persistent", "oneshot"])
def test_command_that_is_not_found_names_command_and_folder(tmp_path, mode):
    with pytest.raises(RewardError) as caught:
        open_reward_program(
            ["no-such-program", "x"],
            mode=mode,
            timeout_seconds=5,
            folder=tmp_path,
            judge_allowed=False,
        )
    assert 'reward_command = ["no-such-program", "x"]' in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert 'no command "no-such-program"' in str(caught.value)
    assert "stderr" not in str(caught.value)


def test_arguments_are_not_read_by_a_shell(tmp_path, requests_of):
    source = "import sys; sys.stdin.read(); print('{\"reward\": %d}' % (sys.argv[1] == '$HOME *'))"
    command = ["python3", "-c", source, "$HOME *"]
    with open_reward_program(
        command, mode="oneshot", timeout_seconds=20, folder=tmp_path, judge_allowed=False
    ) as program:
        assert program.score(requests_of("a"))[0].reward == 1
