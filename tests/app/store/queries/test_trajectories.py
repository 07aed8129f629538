from __future__ import annotations

import pytest
from read_runs import answer, group, held_out, numbered, question, read_run, unlearned
from sqlalchemy import select
from told_runs import groups, info, tell, whole_run

from app.store.models import Answer
from app.store.monitor import StoreMonitor
from app.store.queries.places import place_of, resumed_from
from app.store.queries.trajectories import (
    answers_of,
    find_answer,
    first_line,
    group_numbers,
    groups_of,
    lines_of,
    occasions_of,
    prompt_of,
)
from trainer.monitor import GroupRecord


@pytest.fixture
def read(shared_store):
    def ask(query, *arguments, **options):
        with shared_store.read() as session:
            return query(session, *arguments, **options)

    return ask


@pytest.fixture(scope="module")
def mixed(shared_store, tmp_path_factory):
    """Three groups that come in another order by each measure."""
    told = [
        group(0, answer(0, "short", 0.2, tokens=2), answer(1, "short", 0.4, tokens=2)),
        group(
            1,
            answer(0, "a longer one", 1.0, tokens=9, audit=("verbose",)),
            unlearned(1, "cut", 0.0, "truncated", tokens=16, cut=True),
            answer(2, "middle", 0.6, tokens=4, audit=("verbose", "repetitive")),
        ),
        group(2, answer(0, "same", 0.9, tokens=5), unlearned(1, "other", 0.9, "zero_signal")),
    ]
    return read_run(
        shared_store, tmp_path_factory.mktemp("run"), {1: told, 2: groups(2), 7: groups(7)}
    )


def test_the_latest_update_is_open_unless_another_one_is_asked_for(read, mixed):
    latest = read(place_of, mixed, "train", None)
    assert (latest.update, latest.earlier, latest.later, latest.latest) == (7, 2, None, 7)
    first = read(place_of, mixed, "train", 1)
    assert (first.update, first.earlier, first.later) == (1, None, 2)
    assert (first.status, first.groups, first.answers, first.trained) == ("trained", 3, 7, 5)
    assert first.reward_mean == pytest.approx((0.2 + 0.4 + 1.0 + 0.0 + 0.6 + 0.9 + 0.9) / 7)


def test_an_update_that_is_not_there_still_has_neighbours(read, mixed):
    gap = read(place_of, mixed, "train", 4)
    assert (gap.status, gap.groups, gap.earlier, gap.later) == ("absent", 0, 2, 7)
    assert read(place_of, mixed, "evaluation", None) is None


@pytest.mark.parametrize(
    ("order", "numbers"),
    [("order", [0, 1, 2]), ("reward", [2, 1, 0]), ("spread", [1, 0, 2]), ("length", [1, 2, 0])],
)
def test_groups_are_sorted(read, mixed, order, numbers):
    assert read(group_numbers, mixed, "train", 1, order) == numbers
    assert [line.number for line in read(groups_of, mixed, "train", 1, order)] == numbers


def test_a_group_in_the_list_says_what_is_remarkable_about_its_answers(read, mixed):
    same, cut, level = read(groups_of, mixed, "train", 1)
    assert (same.line, same.size, same.trained) == ("Question number 0?", 2, 2)
    assert (same.rewards, same.duplicates) == ((0.2, 0.4), 1)
    assert (cut.reasons, cut.truncated) == ({"truncated": 1}, 1)
    assert cut.audit == {"repetitive": 1, "verbose": 2}
    assert (cut.reward_min, cut.reward_max) == (0.0, 1.0)
    assert level.reasons == {"zero_signal": 1}


def test_a_list_of_many_groups_comes_in_parts(read, shared_store, tmp_path):
    run = read_run(shared_store, tmp_path, {1: groups(1, count=7, size=1)})
    lines = read(groups_of, run, "train", 1, skip=2, limit=3)
    assert [line.number for line in lines] == [2, 3, 4]


def test_a_large_group_shows_some_of_its_rewards(read, shared_store, tmp_path):
    run = read_run(shared_store, tmp_path, {1: groups(1, count=1, size=100)})
    rewards = read(groups_of, run, "train", 1)[0].rewards
    assert len(rewards) == 32
    assert (rewards[0], rewards[-1]) == (0.0, 0.99)


@pytest.mark.parametrize(
    ("order", "texts"),
    [
        ("reward", ["a longer one", "middle", "cut"]),
        ("advantage", ["a longer one", "middle", "cut"]),
        ("length", ["cut", "a longer one", "middle"]),
    ],
)
def test_answers_of_a_group_are_sorted(read, mixed, order, texts):
    line = read(groups_of, mixed, "train", 1)[1]
    assert [row.text for row in read(answers_of, line.id, order)] == texts


def test_an_answer_has_all_that_was_decided_about_it(read, shared_store, mixed):
    row, counts = read(find_answer, mixed, numbered(shared_store, mixed)["cut"])
    assert counts
    assert (row.update, row.kind, row.group, row.member) == (1, "train", 1, 1)
    assert (row.reward, row.tokens, row.truncated) == (0.0, 16, True)
    assert (row.trained, row.skip_reason) == (False, "truncated")
    assert row.parts == {"right": 0.0}
    assert read(find_answer, mixed, 10**6) is None
    assert read(find_answer, mixed + 1, row.id) is None


def test_a_prompt_is_told_with_its_roles(read, shared_store, tmp_path):
    told = question(0, ("system", "Be brief."), ("user", "What is 2 + 2?\nOnly the number."))
    record = GroupRecord(0, told, [answer(0, "4", 1.0)])
    run = read_run(shared_store, tmp_path, {1: [record], 3: [record]})
    line = read(groups_of, run, "train", 1)[0]
    assert line.line == "What is 2 + 2?"
    prompt = read(prompt_of, line.prompt_id)
    assert prompt.messages == (
        ("system", "Be brief."),
        ("user", "What is 2 + 2?\nOnly the number."),
    )
    assert read(lines_of, [line.prompt_id]) == {line.prompt_id: "What is 2 + 2?"}
    times = read(occasions_of, line.prompt_id)
    assert [(time.update, time.reward_mean, time.reward_max) for time in times] == [
        (1, 1.0, 1.0),
        (3, 1.0, 1.0),
    ]


def test_the_first_line_is_short_and_says_something():
    assert first_line([{"content": "\n\n  Hello \nworld"}]) == "Hello"
    assert first_line([{"content": ""}]) == ""
    assert first_line([]) == ""
    long = first_line([{"content": "word " * 100}])
    assert len(long) == 160
    assert long.endswith("…")


def test_evaluations_are_apart_and_the_first_is_before_any_update(read, shared_store, tmp_path):
    evaluations = {0: held_out("before"), 1: held_out("after", "second")}
    run = read_run(shared_store, tmp_path, {1: groups(1)}, evaluations=evaluations)
    first = read(place_of, run, "evaluation", 0)
    assert (first.status, first.groups, first.later) == ("evaluation", 1, 1)
    assert len(read(groups_of, run, "evaluation", 1)) == 2
    assert len(read(groups_of, run, "train", 1)) == 2


def test_an_update_whose_numbers_are_not_there_yet_is_begun(read, shared_store, tmp_path):
    run = read_run(shared_store, tmp_path, {1: groups(1)}, begun=groups(2), end=False)
    assert read(place_of, run, "train", None).status == "begun"
    assert read(place_of, run, "train", None).answers == 8


def test_what_a_resume_superseded_is_hidden(read, shared_store, tmp_path):
    first = whole_run(shared_store, tmp_path, 5, end=False)
    run = first._run_id
    again = StoreMonitor(shared_store, run)
    again.run_started(info(tmp_path, resumed_from_update=3))
    tell(again, 4)
    again.settle()
    again.abandon()
    assert read(place_of, run, "train", None).update == 4
    assert len(read(groups_of, run, "train", 4)) == 2
    assert read(place_of, run, "train", 5).status == "superseded"
    assert read(resumed_from, run) == 3
    old = read(groups_of, run, "train", 3)[0]
    assert [time.update for time in read(occasions_of, old.prompt_id)] == [1, 2, 3, 4]
    with shared_store.read() as session:
        hidden = select(Answer.id).where(Answer.run_id == run, Answer.update == 5).limit(1)
        number = session.scalars(hidden).one()
    assert read(find_answer, run, number)[1] is False
