"""The loss of held-out texts, when it is taken, and what a run makes of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_runs import Recorder, learner_on, talk, teach, write_texts

from trainer.algorithms.evaluation import Evaluator, Measured
from trainer.algorithms.held_out_loss import HeldOutLoss
from trainer.chat.texts import Text
from trainer.checkpoint.file import read
from trainer.config.common import EvaluationSection
from trainer.inputs import read_text_inputs
from trainer.run import run

HELD_OUT = [("fourteen", "pp"), ("fifteen in", "qqq in"), ("sixteen", "r", "seventeen", "sss")]


def random_texts(count):
    rng = np.random.default_rng(0)
    texts = []
    for i in range(count):
        rest = rng.integers(0, 250, 1 + i % 5).astype(np.int32)
        learnt = np.ones(len(rest), np.bool_)
        learnt[1:-1:2] = False
        texts.append(Text(i + 1, (258, 72), rest, learnt))
    return texts


@pytest.mark.parametrize("cut", [{}, {"fanout": "off"}, {"micro_batch": 8}], ids=str)
def test_it_is_the_mean_over_all_learnt_tokens(decoder, cut):
    """Of 19 texts, more than are looked at at once and no multiple of it."""
    texts, learner = random_texts(19), learner_on(decoder, **cut)
    result = HeldOutLoss(texts, learner, Recorder()).measure()
    total, tokens = 0.0, 0
    for text in texts:
        ids = [*text.prompt, *text.rest.tolist()]
        logprobs = decoder.logits(ids, learner.adapter).double().log_softmax(-1)
        for place, (token, learnt) in enumerate(zip(text.rest, text.learnt, strict=True)):
            if learnt:
                total -= float(logprobs[len(text.prompt) + place - 1, int(token)])
                tokens += 1
    assert result.figure == result.values["eval/loss"] == pytest.approx(total / tokens, rel=1e-5)
    assert (result.values["eval/tokens"], result.values["eval/texts"]) == (tokens, 19)
    assert result.records == ()


def test_nothing_is_trained_by_it(decoder):
    learner = learner_on(decoder)
    before = learner.adapter.state()
    HeldOutLoss(random_texts(3), learner, Recorder()).measure()
    assert all(p.grad is None for p in learner.adapter.parameters())
    assert all(torch.equal(v, before[k]) for k, v in learner.adapter.state().items())


class Figures:
    """Gives one figure after the other, of which lower ones are better."""

    lower_is_better = True

    def __init__(self, *figures):
        self.figures = list(figures)

    def measure(self):
        return Measured(self.figures.pop(0), (), {})


def evaluator(*figures, **section):
    settings = EvaluationSection.model_construct(**section)
    return Evaluator(settings, Figures(*figures), Recorder(), updates_each=3)


def test_a_lower_loss_is_a_better_one():
    held = evaluator(2.0, 1.5, 1.5, 1.6, 1.4, patience=2)
    improved, exhausted = [], []
    for update in range(5):
        held.evaluate(update)
        improved.append(held.improved)
        exhausted.append(held.exhausted)
    assert improved == [True, True, False, False, True]
    assert exhausted == [False, False, False, True, False]
    assert (held.best, held.best_update) == (1.4, 4)


@pytest.mark.parametrize(("min_delta", "best"), [(0.25, 2.0), (0.1, 1.75)])
def test_better_means_by_more_than_min_delta_under_the_best(min_delta, best):
    held = evaluator(2.0, 1.75, min_delta=min_delta)
    held.evaluate(0)
    held.evaluate(3)
    assert held.best == best


def test_an_iteration_is_an_epoch():
    """Of three steps; every second one."""
    held = evaluator(every_iterations=2)
    assert [u for u in range(14) if held.is_due(u)] == [0, 6, 12]


# -- in a run ------------------------------------------------------------------------------------


def held(folder, texts=HELD_OUT):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "held.jsonl").write_text("\n".join(map(talk, texts)), encoding="utf-8")


def evaluated(folder, model, changes):
    held(folder)
    return teach(folder, model, {"evaluation.data": "held.jsonl"} | changes)


def test_a_run_evaluates_before_it_begins_after_epochs_and_at_its_end(model, tmp_path):
    """Ten texts are two steps of an epoch; of five epochs every second one, and the last."""
    changes = {"training.epochs": 5, "evaluation.every_iterations": 2}
    recorder = evaluated(tmp_path, model, changes)
    assert list(recorder.evaluations) == [0, 4, 8, 10]
    assert all(groups == () for groups in recorder.held_out.values())
    texts = read_text_inputs(write_texts(tmp_path, model, {"evaluation.data": "held.jsonl"}))
    assert recorder.evaluations[0]["eval/tokens"] == sum(t.tokens for t in texts.held_out)


def test_evaluating_changes_nothing_in_training(model, tmp_path):
    recorder = evaluated(tmp_path / "with", model, {"training.epochs": 3})
    without = teach(tmp_path / "without", model, {"training.epochs": 3})
    losses = [[v["sft/loss"] for v in r.values.values()] for r in (recorder, without)]
    assert losses[0] == losses[1]


def test_a_run_stops_when_patience_is_over_and_keeps_its_best(model, tmp_path):
    """A rate far too high: the held-out loss only gets worse."""
    changes = {
        "training.epochs": 9,
        "training.lr": 0.3,
        "evaluation.patience": 2,
        "checkpoint.mode": "best_eval",
    }
    recorder = evaluated(tmp_path, model, changes)
    losses = {u: v["eval/loss"] for u, v in recorder.evaluations.items()}
    best = min(losses, key=losses.get)
    assert recorder.outcome.updates == best + 4 < 18, "two epochs of two steps were not better"
    assert recorder.outcome.status == "completed"
    [message] = recorder.messages("early_stop")
    assert "2 evaluations in a row were not better than the" in message
    kept = tmp_path / "adapter.checkpoints" / "best.ckpt"
    assert kept.exists() is (best > 0)


def test_the_best_one_is_kept(model, tmp_path):
    changes = {"training.epochs": 3, "checkpoint.mode": "best_eval"}
    recorder = evaluated(tmp_path, model, changes)
    losses = {u: v["eval/loss"] for u, v in recorder.evaluations.items()}
    best = min(losses, key=losses.get)
    assert best > 0
    assert read(tmp_path / "adapter.checkpoints" / "best.ckpt")["update"] == best


def test_a_wish_to_stop_breaks_an_evaluation_off(model, tmp_path):
    held(tmp_path, [*HELD_OUT] * 4)
    changes = {"training.epochs": 2, "evaluation.data": "held.jsonl"}
    recorder = teach(tmp_path, model, changes, stop_at="evaluate 8/12")
    assert recorder.evaluations == {}
    assert (recorder.outcome.status, recorder.outcome.updates) == ("stopped", 0)


def test_held_out_plain_text_is_told_by_its_name(model, tmp_path):
    config = write_texts(tmp_path, model, {"evaluation.data": "held.txt"})
    (tmp_path / "held.txt").write_text("some words\n")
    recorder = Recorder()
    run(config, recorder)
    assert recorder.evaluations[0]["eval/tokens"] == 10
