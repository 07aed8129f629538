from collections import Counter
from itertools import combinations
from random import Random

import pytest

from trainer.config.judge import StrategySection
from trainer.judge.layouts import CHUNK_ANSWERS, Layout, lay_out, read_off
from trainer.judge.questions import Failure, Verdict


def plan(count, fits=lambda kind, chosen: True, lengths=None, seed=0, **keys):
    return lay_out(lengths or [10] * count, StrategySection(**keys), fits, Random(seed))


def at_most(number):
    return lambda kind, chosen: len(chosen) <= number


def reply(*scores):
    return tuple(Verdict(score, "") for score in scores)


def scores_of(layout, replies, count, **keys):
    verdicts = read_off(layout, replies, count, StrategySection(**keys))
    assert not isinstance(verdicts, Failure), verdicts
    return [verdict.score for verdict in verdicts]


@pytest.mark.parametrize("mode", ["auto", "listwise"])
def test_a_group_that_fits_goes_out_in_one_request(mode):
    assert plan(8, mode=mode) == Layout("list", ((0, 1, 2, 3, 4, 5, 6, 7),))


def test_listwise_never_splits():
    failure = plan(8, at_most(7), mode="listwise")
    assert isinstance(failure, Failure)
    assert "all 8 answers is too long" in failure.reason
    assert 'mode = "auto"' in failure.reason


def test_auto_splits_into_as_few_chunks_as_fit_and_repeats_an_anchor():
    layout = plan(9, at_most(5), lengths=[1, 9, 9, 9, 5, 2, 2, 2, 2])
    # The median of the lengths is 2; with an anchor and 8 others, two chunks hold five each.
    assert layout.anchor in (5, 6, 7, 8)
    assert [len(request) for request in layout.requests] == [5, 5]
    times = Counter(place for request in layout.requests for place in request)
    assert times == {place: 2 if place == layout.anchor else 1 for place in range(9)}


def test_chunks_without_an_anchor_hold_two_answers_at_least():
    layout = plan(7, at_most(3), anchor=False)
    assert layout.anchor is None
    assert layout.requests == ((0, 3, 6), (1, 4), (2, 5))
    assert isinstance(plan(7, at_most(2), anchor=False), Failure)


def test_the_mode_chunked_keeps_chunks_small():
    assert CHUNK_ANSWERS == 5
    layout = plan(16, mode="chunked")
    # 15 others at four a chunk make four chunks.
    assert sorted(len(request) for request in layout.requests) == [4, 5, 5, 5]
    without = plan(16, mode="chunked", anchor=False)
    assert [len(request) for request in without.requests] == [4, 4, 4, 4]


def test_the_anchor_stands_at_different_places():
    places = {
        request.index(layout.anchor)
        for seed in range(20)
        for layout in [plan(16, mode="chunked", seed=seed)]
        for request in layout.requests
    }
    assert places == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("mode", ["auto", "chunked", "pairwise"])
def test_answers_too_long_for_any_request_are_a_failure(mode):
    failure = plan(4, at_most(1), mode=mode)
    assert isinstance(failure, Failure)
    assert "raise max_request_chars" in failure.reason


def test_chunks_are_put_on_the_scale_of_the_anchor():
    layout = Layout("list", ((0, 1, 2), (3, 0, 4)), anchor=0)
    # The anchor has 0.4 and 0.8, so 0.6 in the mean. The first chunk: 0.2 is half of the way to
    # 0.4 and becomes 0.3, 0.7 half of the way on to 1 and becomes 0.8. The second chunk: 0.4 is
    # half of 0.8, so 0.3, and 0.9 is half of the way on, so 0.8.
    replies = [reply(0.4, 0.2, 0.7), reply(0.4, 0.8, 0.9)]
    assert scores_of(layout, replies, 5) == pytest.approx([0.6, 0.3, 0.8, 0.3, 0.8])


def test_without_an_anchor_scores_stay_as_they_are():
    layout = Layout("list", ((0, 2), (1, 3)))
    assert scores_of(layout, [reply(0.1, 0.2), reply(0.3, 0.4)], 4) == [0.1, 0.3, 0.2, 0.4]


def test_a_chunk_that_fails_fails_the_group():
    layout = Layout("list", ((0, 1), (0, 2)), anchor=0)
    replies = [reply(0.5, 1.0), Failure("it broke")]
    assert read_off(layout, replies, 3, StrategySection()) == Failure("it broke")


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8])
def test_every_pair_is_compared_once_in_each_order(count):
    layout = plan(count, mode="pairwise")
    wanted = [order for pair in combinations(range(count), 2) for order in (pair, pair[::-1])]
    assert sorted(layout.requests) == sorted(wanted)
    evens, odds = layout.requests[::2], layout.requests[1::2]
    assert [pair[::-1] for pair in evens] == list(odds)


@pytest.mark.parametrize("count", [3, 4, 7, 8])
def test_in_one_order_answers_come_first_about_equally_often(count):
    layout = plan(count, mode="pairwise", both_orders=False)
    assert len(layout.requests) == count * (count - 1) // 2
    first = Counter(one for one, _ in layout.requests)
    assert max(first.values()) - min(first.values()) <= (0 if count % 2 else 1)


def test_few_pairs_connect_all_answers():
    layout = plan(8, mode="pairwise", max_pairs=7, both_orders=False)
    assert layout.requests == tuple((i, i + 1) for i in range(7))


def test_a_disagreement_between_the_orders_is_half_a_win_each():
    layout = Layout("pair", ((0, 1), (1, 0)), both_orders=True)
    first_wins = [reply(1.0, 0.0), reply(1.0, 0.0)]  # whoever stands first
    assert scores_of(layout, first_wins, 2) == [0.5, 0.5]
    assert scores_of(layout, [reply(1.0, 0.0), reply(0.0, 1.0)], 2) == [1.0, 0.0]
    # A tie in one order and a win in the other: three quarters.
    assert scores_of(layout, [reply(0.5, 0.5), reply(0.0, 1.0)], 2) == [0.75, 0.25]


def test_only_which_of_two_scores_is_higher_counts():
    layout = Layout("pair", ((0, 1),))
    assert scores_of(layout, [reply(0.61, 0.6)], 2) == [1.0, 0.0]


def test_a_failed_comparison_is_missing_and_no_tie():
    layout = plan(3, mode="pairwise", both_orders=False)
    assert layout.requests == ((0, 1), (1, 2), (2, 0))
    # 0 beats 1, 1 beats 2, and 2 against 0 is not known. As a tie it would make 0.75 and 0.25.
    replies = [reply(1.0, 0.0), reply(1.0, 0.0), Failure("late")]
    assert scores_of(layout, replies, 3) == [1.0, 0.5, 0.0]


def test_a_pair_is_missing_where_one_of_its_orders_failed():
    layout = plan(3, mode="pairwise")
    replies = [reply(1.0, 0.0), reply(0.0, 1.0), reply(1.0, 0.0), reply(0.0, 1.0)]
    replies += [reply(1.0, 0.0), Failure("late")]
    assert scores_of(layout, replies, 3) == [1.0, 0.5, 0.0]


def test_an_answer_that_lost_all_its_comparisons_fails_the_group():
    layout = plan(3, mode="pairwise", both_orders=False)
    replies = [Failure("first"), reply(1.0, 0.0), Failure("third")]
    verdict = read_off(layout, replies, 3, StrategySection(mode="pairwise"))
    assert isinstance(verdict, Failure)
    assert "only 1 of its 3 comparisons" in verdict.reason
    assert verdict.reason.endswith("the first that failed: first")


def test_half_of_the_comparisons_have_to_come_back():
    layout = plan(5, mode="pairwise", both_orders=False)
    assert len(layout.requests) == 10
    good = [reply(1.0, 0.0)] * 10
    five = [*good[:5], *[Failure("lost")] * 5]  # the circle of neighbours is whole
    assert not isinstance(read_off(layout, five, 5, StrategySection()), Failure)
    # Without 4 against 0, every answer is still compared, but with four of ten.
    four = [*good[:4], *[Failure("lost")] * 6]
    assert isinstance(read_off(layout, four, 5, StrategySection()), Failure)


def test_an_answer_that_max_pairs_leaves_out_is_average_and_says_so():
    layout = plan(3, mode="pairwise", max_pairs=1, both_orders=False)
    verdicts = read_off(layout, [reply(0.0, 1.0)], 3, StrategySection(mode="pairwise"))
    assert [verdict.score for verdict in verdicts] == [0.0, 1.0, 0.5]
    assert verdicts[2].explanation == "not compared, since max_pairs leaves it out"
    assert verdicts[1].explanation == "won 1 of 1 comparisons"


def test_the_aggregation_is_the_one_that_was_asked_for():
    layout = plan(2, mode="pairwise", both_orders=False)
    keys = {"mode": "pairwise", "aggregation": "bradley_terry"}
    one, other = scores_of(layout, [reply(1.0, 0.0)], 2, **keys)
    assert one == pytest.approx(1 - other)
    assert 0.5 < one < 1
