"""Groups without signal are replaced by fresh prompts. The rewards are a row for each batch that
the program gets: one for the first draw of an update, one for each further draw."""

from __future__ import annotations

import pytest
from small_runs import opened, rewards, train, write_run

LIVE, DEAD = [0.0, 1.0, 0.0, 2.0], [1.0] * 4
DYNAMIC = {"grpo.prompts_per_update": 2, "grpo.dynamic_sampling.max_resample_factor": 3}
PROMPTS = [f"prompt {letter}" for letter in "abcdefghij"]


def asked(recorder, update):
    return [group.prompt.question[-1] for group in recorder.groups[update]]


def trained(recorder, update):
    return [all(t.trained for t in group.trajectories) for group in recorder.groups[update]]


def test_a_dead_group_is_replaced_by_the_next_prompt(model, tmp_path):
    recorder = train(tmp_path, model, rewards(DEAD + LIVE, LIVE), DYNAMIC, prompts=PROMPTS)
    assert asked(recorder, 1) == ["a", "b", "c"]
    assert trained(recorder, 1) == [False, True, True]
    values = recorder.values[1]
    assert values["batch/groups_sampled_fraction"] == pytest.approx(3 / 6)
    assert values["batch/zero_std_group_fraction"] == pytest.approx(1 / 3)
    assert values["optimizer/step"] == 2.0


def test_the_next_update_goes_on_after_the_prompts_that_were_drawn(model, tmp_path):
    table = rewards(DEAD + LIVE, LIVE, LIVE + LIVE)
    recorder = train(tmp_path, model, table, DYNAMIC | {"grpo.updates": 2}, prompts=PROMPTS)
    assert asked(recorder, 2) == ["d", "e"]


def test_as_many_prompts_are_drawn_as_allowed_and_no_more(model, tmp_path):
    """Two live groups never come: 2 + 2 + 2 prompts are drawn, three times the wanted two."""
    table = rewards(DEAD + DEAD, DEAD + DEAD, LIVE + DEAD)
    recorder = train(tmp_path, model, table, DYNAMIC, prompts=PROMPTS)
    assert asked(recorder, 1) == list("abcdef")
    assert sum(trained(recorder, 1)) == 1
    assert recorder.values[1]["batch/groups_sampled_fraction"] == 1.0


def test_where_every_group_is_live_nothing_is_drawn_again(model, tmp_path):
    plain = train(
        tmp_path / "1", model, rewards(LIVE + LIVE), {"grpo.prompts_per_update": 2}, prompts=PROMPTS
    )
    dynamic = train(tmp_path / "2", model, rewards(LIVE + LIVE), DYNAMIC, prompts=PROMPTS)
    assert asked(dynamic, 1) == ["a", "b"]
    assert "batch/groups_sampled_fraction" not in plain.values[1]
    same = {k for k in plain.values[1] if not k.startswith(("timing", "throughput", "system"))}
    assert {k: dynamic.values[1][k] for k in same} == {k: plain.values[1][k] for k in same}


def test_all_dead_is_skipped_and_stalls_as_ever(model, tmp_path):
    changes = DYNAMIC | {"grpo.updates": 9, "grpo.max_stalled_updates": 2}
    recorder = train(tmp_path, model, rewards(DEAD + DEAD), changes, prompts=PROMPTS)
    assert recorder.status == {1: "skipped", 2: "skipped"}
    assert recorder.outcome.status == "failed"


def test_the_place_among_the_prompts_is_part_of_the_state(model, tmp_path):
    config = write_run(tmp_path, model, rewards(DEAD + LIVE, LIVE), DYNAMIC, prompts=PROMPTS)
    with opened(config) as session:
        session.loop.update(1)
        state = session.loop.method.state()
        assert state["position"] == 3
        session.loop.method.load_state({**state, "position": 7})
        assert session.loop.method.position == 7
