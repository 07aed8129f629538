"""What somebody who watches a run may ask for between two updates; the rest of a run's course is
tested with the loop and with SFT, which both are one."""

from __future__ import annotations

import pytest
from small_runs import Recorder, talk, write_texts

from trainer.run import run


class Asking(Recorder):
    """Asks once, after the third update."""

    def __init__(self, *wishes):
        super().__init__()
        self.wishes = frozenset(wishes)

    def requested(self):
        self.calls.append("asked")
        if max(self.values) == 3:
            wishes, self.wishes = self.wishes, frozenset()
            return wishes
        return frozenset()


def go(folder, model, *wishes, **changes):
    folder.mkdir(exist_ok=True)
    (folder / "held.jsonl").write_text(talk(["fourteen", "pp"]), encoding="utf-8")
    own = {"training.epochs": 3, "evaluation.data": "held.jsonl", "evaluation.every_iterations": 9}
    own |= {key.replace("__", "."): value for key, value in changes.items()}
    recorder = Asking(*wishes)
    run(write_texts(folder, model, own), recorder)
    return recorder


def test_it_is_asked_after_each_update_and_never_within_one(model, tmp_path):
    recorder = go(tmp_path, model)
    told = [call for call in recorder.calls if call.startswith(("asked", "metrics"))]
    assert told == [c for update in range(1, 7) for c in (f"metrics {update}", "asked")]


def test_a_checkpoint_out_of_turn(model, tmp_path):
    recorder = go(tmp_path, model, "checkpoint", checkpoint__every_steps=50)
    saved = [event.update for event in recorder.events if event.code == "checkpoint"]
    assert saved == [3, 6]


def test_an_evaluation_out_of_turn_counts_like_any_other(model, tmp_path):
    assert list(go(tmp_path / "without", model).evaluations) == [0, 6]
    recorder = go(tmp_path / "asked", model, "evaluate")
    assert list(recorder.evaluations) == [0, 3, 6]


def test_what_asking_cannot_bring_is_said(model, tmp_path):
    recorder = go(tmp_path, model, "checkpoint", checkpoint__every_steps=1)
    [event] = [event for event in recorder.events if event.code == "requested"]
    assert (event.update, event.message) == (
        3,
        "update 3 has just been saved, so asking for it adds nothing",
    )


def test_an_evaluation_that_was_just_made_is_not_made_again(model, tmp_path):
    recorder = go(tmp_path, model, "evaluate", evaluation__every_iterations=1)
    assert list(recorder.evaluations) == [0, 2, 3, 4, 6]
    assert recorder.calls.count("evaluation 3") == 1


@pytest.mark.parametrize("wish", ["evaluate", "checkpoint"])
def test_what_is_learnt_does_not_depend_on_it(model, tmp_path, wish):
    asked, not_asked = go(tmp_path / "a", model, wish), go(tmp_path / "b", model)
    losses = [[v["sft/loss"] for v in r.values.values()] for r in (asked, not_asked)]
    assert losses[0] == losses[1]
