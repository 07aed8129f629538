import math

import pytest

from trainer.health.rules import (
    Above,
    Below,
    Fallen,
    Jump,
    NotRisen,
    OverStart,
    UnderStart,
    Zero,
)
from trainer.health.trackers import (
    Estimate,
    RewardTrend,
    error_of_difference,
    estimate,
    tracker,
)


def verdicts(test, values):
    """The updates (from 1) at which the rule holds, and its last verdict."""
    follow = tracker(test)
    found = [(update, follow.add(update, value)) for update, value in enumerate(values, start=1)]
    return [update for update, verdict in found if verdict], found[-1][1]


def test_above_is_about_the_median():
    # The median of five is above 0.5 once three of them are: update 6 has 0.6, 0.9 and 0.7.
    updates, last = verdicts(Above(0.5), [0.1, 0.2, 0.1, 0.6, 0.9, 0.7, 0.1])
    assert updates == [6, 7]
    assert (last.value, last.since, last.bound) == (0.6, 4, "above 0.5")


def test_above_does_not_hear_single_values():
    assert verdicts(Above(0.5), [0.1, 0.1, 9.0, 0.1, 0.1, 0.1, 9.0, 9.0, 0.1])[0] == []


def test_above_recovers_and_begins_anew():
    updates, last = verdicts(Above(0.5, over=3), [1, 1, 1, 0, 0, 0, 1, 1, 1])
    assert updates == [3, 4, 8, 9]  # at update 4 two of three are still above
    assert last.since == 7


def test_above_a_multiple():
    assert verdicts(Above(4.0, over=1, times=2.0), [7.9, 8.0, 8.1])[0] == [3]


def test_a_value_at_the_limit_is_fine():
    assert verdicts(Above(0.5, over=1), [0.5])[0] == []
    assert verdicts(Below(0.0, over=1), [0.0])[0] == []


def test_below_waits():
    updates, last = verdicts(Below(0.0, over=3, after=6), [-1.0] * 7)
    assert updates == [6, 7]
    assert (last.value, last.since) == (-1.0, 4)


def test_zero_has_to_be_exact_and_unbroken():
    updates, last = verdicts(Zero(3), [0, 0, 1e-9, 0, 0, 0, 0])
    assert updates == [6, 7]
    assert (last.since, last.bound) == (4, "4 times in a row")


def test_jump_is_sudden():
    updates, last = verdicts(Jump(25.0), [5, 6, 7, 40, 30, 20])
    assert updates == [4, 5]  # while it stays above 25
    assert last is None
    assert verdicts(Jump(25.0), [5, 6, 7, 40])[1].bound == "after about 6 before"


def test_a_slow_climb_is_no_jump():
    # 1.1 times the value before: never twice the median of the ten before, their 5.5th back
    assert verdicts(Jump(25.0), [1.1**n for n in range(60)])[0] == []


def test_jump_knows_no_usual_value_at_the_start():
    assert verdicts(Jump(25.0), [40, 50])[0] == []


def test_under_a_fraction_of_the_start():
    # the start is the median of 3, 3, 9, 3, 3
    updates, last = verdicts(UnderStart(1 / 3, over=3), [3, 3, 9, 3, 3, 1.1, 0.9, 0.9, 0.9])
    assert updates == [8, 9]
    assert (last.since, last.bound) == (7, "under 33% of the 3 it started from")


def test_over_a_multiple_of_the_start():
    grown = OverStart(4.0, least=100.0, over=2)
    assert verdicts(grown, [30] * 5 + [119, 119])[0] == []
    updates, last = verdicts(grown, [30] * 5 + [121, 121])
    assert updates == [7]
    assert last.bound == "more than 4 times the 30 it started from"
    assert verdicts(grown, [5] * 5 + [90, 90])[0] == []  # short answers may grow
    assert verdicts(grown, [5] * 5 + [110, 110])[0] == [7]


def test_estimates_by_hand():
    # mean 2; squares 1 + 0 + 1 over n − 1 = 2, and over n for the mean's own variance
    assert estimate([1.0, 2.0, 3.0]) == Estimate(2.0, pytest.approx(1 / 3))
    assert error_of_difference(Estimate(0, 9.0), Estimate(0, 16.0)) == 5.0


def test_not_risen():
    flat = [0.3, 0.5] * 30
    updates, last = verdicts(NotRisen(after=50, over=20), flat)
    assert updates == list(range(50, 61))
    assert (last.value, last.since) == (pytest.approx(0.4), 1)
    assert last.bound == "not above the 0.4 of the first 20 updates"
    assert verdicts(NotRisen(), [0.4] * 50)[0] == [50]  # without any noise, too


def test_half_a_standard_error_counts_as_risen():
    # Values 0 and 1 in turn: variance of each mean 20 · 0.25 / 19 / 20, error of the difference
    # sqrt(2 · 0.25 / 19) = 0.1622. A rise of 0.09 is more than half of it, of 0.07 is not.
    noise = [0.0, 1.0] * 20
    for rise, updates in ((0.09, []), (0.07, [40])):
        values = [v + (rise if i >= 20 else 0) for i, v in enumerate(noise)]
        assert verdicts(NotRisen(after=40), values)[0] == updates


def test_fallen():
    # 20 at 0.2, 20 at 0.8, then 0.5: the mean of 20 has lost a third of the gain of 0.6 when it is
    # at 0.6, so when more than 13 of its 20 values are 0.5: at update 54.
    wobble = [0.01 * (-1) ** i for i in range(80)]
    values = [v + w for v, w in zip([0.2] * 20 + [0.8] * 20 + [0.5] * 20, wobble, strict=False)]
    updates, last = verdicts(Fallen(after=50, over=20), values)
    assert updates == list(range(54, 61))
    assert (last.value, last.since, last.bound) == (pytest.approx(0.5), 40, "down from 0.8")


def test_noise_is_no_fall():
    values = [0.2 + 0.1 * math.sin(i) for i in range(20)]
    values += [0.6 + 0.3 * math.sin(i * i) for i in range(200)]
    assert verdicts(Fallen(), values)[0] == []


def test_limits_have_to_be_looked_up():
    with pytest.raises(TypeError, match=r"audit\.verbosity_limit has not been looked up"):
        tracker(Jump("audit.verbosity_limit"))


def learning(means, best=1.0):
    trend = RewardTrend()
    for mean in means:
        trend.add(mean, best, None)
    return trend.is_learning()


def test_a_rising_reward_is_learning():
    assert learning([0.1 + 0.005 * i for i in range(60)])
    assert not learning([0.4] * 60)
    assert not learning([0.7 - 0.005 * i for i in range(60)])


def test_a_reward_near_the_best_answers_is_learnt():
    # from 0.2 to a best of 1.0: 70% of the way is 0.76
    assert learning([0.2] * 10 + [0.77] * 100)
    assert not learning([0.2] * 10 + [0.75] * 100)


def test_a_reward_that_began_at_its_best_is_not():
    assert not learning([1.0] * 60)


def test_too_few_or_no_rewards_are_not():
    assert not learning([0.1 * i for i in range(9)])
    assert not learning([])
    assert not learning([None] * 60)


def at_best(means, best=1.0, spread=0.0):
    trend = RewardTrend()
    for mean in means:
        trend.add(mean, best, spread)
    return trend.is_at_best()


def zeros_and_ones(right, *, worth=1.0, offset=0.0):
    """Updates of answers that get 0 or 1, of which a part is right, on any scale."""
    spread = worth * math.sqrt(right * (1 - right))
    return {"means": [offset + worth * right] * 30, "best": offset + worth, "spread": spread}


def test_nine_tenths_right_answers_are_at_their_best():
    # (1 − p) / sqrt(p (1 − p)) is 1/3 at p = 0.9
    assert at_best(**zeros_and_ones(0.91))
    assert not at_best(**zeros_and_ones(0.89))


@pytest.mark.parametrize(("worth", "offset"), [(1e-3, 0.0), (500.0, -700.0), (1.0, 40.0)])
def test_the_scale_of_rewards_does_not_matter(worth, offset):
    assert at_best(**zeros_and_ones(0.91, worth=worth, offset=offset))
    assert not at_best(**zeros_and_ones(0.89, worth=worth, offset=offset))


def test_updates_of_one_answer_each_differ_only_between_them():
    assert at_best(([1.0] * 11 + [0.0]) * 3)  # the last 20 hold one or two zeros
    assert not at_best([1.0, 1.0, 0.0] * 12)


def test_rewards_far_below_the_best_answer_are_not_at_their_best():
    # a reward model's scores about 0 with a deviation of 1, and best ones of 3
    assert not at_best([0.0] * 30, best=3.0, spread=1.0)


def test_a_strange_update_long_ago_says_nothing():
    assert not at_best([-100.0] + [0.4] * 30, spread=0.49)


def test_where_all_answers_score_alike_nobody_knows_the_best():
    assert not at_best([0.0] * 60, best=0.0)
    assert not at_best([1.0] * 60)
    assert not at_best([0.7 - 1e-12 * (i % 20 == 0) for i in range(60)], best=0.7)
    assert at_best([0.9] * 2 + [1.0] * 60)


def test_the_best_is_not_known_at_once():
    assert not at_best([0.97] * 9, spread=0.17)
    assert at_best([0.97] * 10, spread=0.17)
