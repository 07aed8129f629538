from pathlib import Path

from trainer.reward.report import ProgramError, Reporter, describe_exit, list_indices, shorten

REPORTER = Reporter(("python3", "reward.py"), Path("/runs/sum"))


def test_error_names_program_folder_line_prompt_and_answer(requests_of):
    (request,) = requests_of("four")
    failure = ProgramError("sent rubbish", line=b'{"x": 1}', request=request, advice="Stop it")
    assert str(REPORTER.error(failure, stderr="warming up\nTraceback\n")) == (
        'The reward program (reward_command = ["python3", "reward.py"], run in /runs/sum) sent'
        ' rubbish. The line: {"x": 1} — Prompt (line 7 of the prompts): "What is 2 + 2?".'
        ' Answer: "four". Stop it.\nIts stderr ends with:\nwarming up\nTraceback'
    )


def test_what_failed_by_itself_is_told_by_its_stderr_before_any_advice():
    failure = ProgramError("died", advice="Try again", told_by_stderr=True)
    start = 'The reward program (reward_command = ["python3", "reward.py"], run in /runs/sum) died.'
    assert str(REPORTER.error(failure, stderr="Traceback\n")) == (
        f"{start}\nIts stderr ends with:\nTraceback\nTry again."
    )
    assert str(REPORTER.error(failure, stderr="")) == f"{start}\nIts stderr is empty.\nTry again."
    assert str(REPORTER.error(failure.about(b"x", None))) == f"{start} The line: x\nTry again."


def test_long_text_keeps_both_ends():
    assert shorten("a" * 50 + "b" * 50, limit=10) == "aaaaa […90 characters…] bbbbb"


def test_control_characters_are_escaped():
    assert shorten("\x1b[31mred\n\ud800") == r"\x1b[31mred\n\ud800"


def test_stderr_is_cut_from_the_front():
    text = str(REPORTER.error(ProgramError("died"), stderr="first\n" + "x" * 5000 + "\nlast\n"))
    assert "first" not in text
    assert text.endswith("\nlast")


def test_exit_statuses():
    assert describe_exit(3) == "exit status 3"
    assert describe_exit(-15) == "killed by SIGTERM"
    assert "want of memory" in describe_exit(-9)


def test_long_lists_of_indices_are_cut():
    assert list_indices([]) == "none"
    assert list_indices(range(5), limit=3) == "0, 1, 2 and 2 more"
