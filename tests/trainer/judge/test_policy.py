import pytest

from trainer.judge.judge import Ruling
from trainer.judge.policy import groups_to_drop
from trainer.judge.questions import Failure, JudgeError, Verdict

GOOD = Ruling((Verdict(0.5, ""),))
BAD = Ruling((), Failure("it answered with status 500"))


def dropped(*rulings, judge_failure="drop_group", most=0.5):
    return groups_to_drop(rulings, judge_failure=judge_failure, max_dropped_fraction=most)


@pytest.mark.parametrize("judge_failure", ["drop_group", "fail"])
@pytest.mark.parametrize("most", [0.0, 1.0])
def test_without_failures_nothing_is_lost(judge_failure, most):
    assert dropped(GOOD, GOOD, judge_failure=judge_failure, most=most) == []
    assert dropped(judge_failure=judge_failure, most=most) == []


def test_groups_without_verdicts_are_dropped_up_to_the_fraction():
    assert dropped(BAD, GOOD, GOOD, BAD) == [0, 3]
    assert dropped(BAD, BAD, most=1.0) == [0, 1]


@pytest.mark.parametrize(
    ("rulings", "most"), [([BAD, BAD, GOOD], 0.5), ([BAD, GOOD, GOOD], 0.3), ([BAD], 0.0)]
)
def test_more_than_the_fraction_stops_the_run(rulings, most):
    with pytest.raises(JudgeError) as caught:
        dropped(*rulings, most=most)
    message = str(caught.value)
    assert f"no verdict on {rulings.count(BAD)} of {len(rulings)} groups" in message
    assert f"max_judge_dropped_fraction = {most:g}" in message
    assert "it answered with status 500" in message
    assert caught.value.exit_status == 1


def test_fail_allows_no_failure():
    with pytest.raises(JudgeError) as caught:
        dropped(GOOD, GOOD, BAD, judge_failure="fail", most=1.0)
    message = str(caught.value)
    assert 'judge_failure = "fail" allows none' in message
    assert "The first, group 3: it answered with status 500." in message
