import pytest

from trainer.chat.dataset import read_prompts
from trainer.reward.program import RewardRequest, open_reward_program


def rewards(replies):
    return [reply["reward"] for reply in replies]


def test_smoke_program_pays_for_the_right_number_alone_then_in_a_sentence(examples, scores):
    replies = scores(examples / "smoke_rl_reward.py", 7, "7", " 7\n", "It is 7.", "seven", "")

    assert rewards(replies) == [1.0, 1.0, 0.5, 0.0, 0.0]


def test_smoke_program_pays_less_the_further_a_lone_number_is_off(examples, scores):
    replies = scores(examples / "smoke_rl_reward.py", 7, "6", "9", "10", "11", "0", "It is 6.")

    assert rewards(replies) == [0.15, 0.1, 0.05, 0.0, 0.0, 0.0]


def test_smoke_program_does_not_pay_for_guessing_or_for_odd_spellings(examples, scores):
    guesses = ("6 7 8", "7 7", "-7", "007", "٧", "7_0", "7" * 6000)

    replies = scores(examples / "smoke_rl_reward.py", 7, *guesses)

    assert rewards(replies) == [0.0] * len(guesses)


def test_smoke_program_serves_oneshot_and_lines_without_metadata(examples, converse):
    replies = converse(
        examples / "smoke_rl_reward.py",
        {"prompt": "What is 2 + 2?", "completion": "4"},
        {"prompt": "Add 9 and 8.", "completion": "It is 17.", "metadata": {"answer": 17}},
    )

    assert replies == [{"reward": 1.0}, {"reward": 0.5}]


def test_smoke_ppo_program_pays_for_a_sentence_with_one_even_number(examples, scores):
    good = ("It is 8.", " The sum is 16.\n")
    bad = ("8", "It is 7.", "It is 8 or 10.", "It is 8", "it is 8.", "It is 008.", "It is ٨.", "")

    replies = scores(examples / "smoke_ppo_reward.py", 7, *good, *bad)

    assert rewards(replies) == [1.0] * len(good) + [0.0] * len(bad)


def test_smoke_ppo_program_serves_oneshot(examples, converse):
    [reply] = converse(examples / "smoke_ppo_reward.py", {"prompt": "?", "completion": "It is 2."})

    assert reply == {"reward": 1.0}


@pytest.mark.parametrize(
    ("completion", "right", "form"),
    [
        ("7", 0.7, 0.3),
        ("3 + 4 = 7", 0.7, 0.24),  # 8 of 40 characters too many: 0.3 * (1 - 8 / 40)
        ("The answer to your question, which I like, is 7", 0.7, 0.0),
        ("9", 0.16, 0.3),  # off by 2: 0.2 - 2 * 0.02
        ("07", 0.18, 0.3),
        ("17", 0.0, 0.3),
        ("7 or 8", 0.18, 0.2625),  # the last number counts; 5 characters too many
        ("-7", 0.0, 0.3),
        ("1" * 6000, 0.0, 0.3),
        ("seven", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_addition_program_adds_being_right_and_form(examples, scores, completion, right, form):
    [reply] = scores(examples / "addition" / "reward.py", 7, completion)

    assert reply["parts"] == {"right": right, "form": form}
    assert reply["reward"] == pytest.approx(right + form, abs=1e-9)


def test_addition_program_pays_a_right_number_in_words_more_than_a_wrong_one_alone(
    examples, scores
):
    wordy = "Let me think about it step by step. The result is 7"

    replies = scores(examples / "addition" / "reward.py", 7, wordy, "8", "6")

    assert rewards(replies) == [0.7, 0.48, 0.48]


@pytest.mark.parametrize(
    ("program", "prompts"),
    [
        ("smoke_rl_reward.py", "tiny/prompts.jsonl"),
        ("addition/reward.py", "addition/prompts.jsonl"),
    ],
)
def test_every_prompt_is_scored_by_the_program_as_a_run_would(examples, program, prompts):
    path = examples / program
    lines = read_prompts(examples / prompts)
    requests = [RewardRequest(line, str(line.metadata["answer"])) for line in lines]

    with open_reward_program(
        ["python3", path.name],
        mode="persistent",
        timeout_seconds=60,
        folder=path.parent,
        judge_allowed=False,
    ) as opened:
        replies = opened.score(requests)

    assert [reply.reward for reply in replies] == [1.0] * len(lines)
