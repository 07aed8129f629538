from __future__ import annotations

import pytest

from trainer.errors import ConfigError
from trainer.model.passes import plan_apart, plan_passes


def plan(lengths, *, prompt=250, micro_batch=512, fanout="auto"):
    return plan_passes(prompt, lengths, micro_batch=micro_batch, fanout=fanout)


def test_eight_short_answers_fit_on_a_long_prompt():
    # 250 + 8 · 14 = 362 rows: the last token of an answer is predicted, not read
    assert plan([15] * 8).passes == (tuple(range(8)),)
    assert plan([15] * 8).reason is None


def test_auto_falls_back_and_says_what_would_be_needed():
    fallen = plan([15] * 8, micro_batch=256)
    assert fallen.passes == tuple((i,) for i in range(8))
    assert "need a pass of 362 tokens" in fallen.reason
    assert plan([15] * 8, micro_batch=300).passes == ((0, 1, 2), (3, 4, 5), (6, 7))


def test_off_puts_one_answer_in_a_pass():
    assert len(plan([15] * 8, fanout="off").passes) == 8


def test_an_explicit_fanout_is_kept_or_refused():
    assert [len(p) for p in plan([15] * 8, fanout=4).passes] == [4, 4]
    with pytest.raises(ConfigError, match="shared_prefix_fanout = 4 cannot be met"):
        plan([15] * 8, fanout=4, micro_batch=260)
    with pytest.raises(ConfigError, match="'max' cannot be met"):
        plan([15] * 8, fanout="max", micro_batch=300)


def test_answers_of_like_length_share_a_pass():
    assert plan([3, 90, 4, 80], prompt=10, micro_batch=190, fanout=2).passes == ((1, 3), (2, 0))


def test_every_answer_is_in_exactly_one_pass():
    cut = plan(list(range(1, 30)), micro_batch=300)
    assert sorted(i for p in cut.passes for i in p) == list(range(29))


def test_nothing_to_train_needs_no_pass():
    assert plan([]).passes == ()


def test_the_answers_of_a_group_are_divided_evenly():
    # seven of 64 would fit beside one: four and four take less memory in as many passes
    assert [len(p) for p in plan([64] * 8, prompt=100, micro_batch=550).passes] == [4, 4]


def test_a_pass_cut_short_between_full_ones_is_told():
    cut = plan([90, 80, 70, 3, 3, 3, 3], prompt=10, micro_batch=190)
    assert len(cut.passes) > 1
    assert "training.micro_batch allows 190" in cut.reason


def test_padding_does_not_make_a_pass_larger_than_its_rows_may_be():
    """One answer of 40 tokens and nine of 4 have 39 + 9 · 3 = 66 rows beside the prompt's 10, but
    the block that attention pads them to would have 10 · 39."""
    plan = plan_passes(10, [4] * 5 + [40] + [4] * 4, micro_batch=80, fanout="auto")
    for members in plan.passes:
        longest = max(40 if i == 5 else 4 for i in members)
        assert len(members) * (longest - 1) <= 80
    assert sorted(i for members in plan.passes for i in members) == list(range(10))


def test_texts_of_their_own_are_cut_alike():
    lengths = [50, 12, 11, 12, 13]
    assert plan_apart(10, lengths, micro_batch=60, fanout="auto") == ((0,), (4, 1, 3, 2))
    assert plan_apart(10, lengths, micro_batch=60, fanout=2) == ((0,), (4, 1), (3, 2))
    assert plan_apart(10, lengths, micro_batch=60, fanout="off") == ((0,), (4,), (1,), (3,), (2,))
