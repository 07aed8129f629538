"""Supervised fine-tuning: the loss and its gradient against plain torch, which texts make a step,
and whole runs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_runs import TALKS, Recorder, exported, learner_on, spoil_from, teach, write_texts

from trainer.algorithms.sft import TextOrder, accumulate
from trainer.chat.texts import Text
from trainer.config.sft import TEXTS_PER_STEP, steps_of
from trainer.inputs import read_text_inputs
from trainer.model.packing import pack_text
from trainer.run import run

# -- the loss ------------------------------------------------------------------------------------


def text(prompt, rest, learnt=None):
    marks = np.ones(len(rest), np.bool_) if learnt is None else np.array(learnt, np.bool_)
    return Text(1, tuple(prompt), np.array(rest, np.int32), marks)


RAGGED = [
    text((258, 72, 105, 257, 259), (65, 66, 67, 257)),
    # two answers with a question between them
    text((258, 72), (70, 257, 258, 71, 257, 259, 72, 73, 257), (1, 1, 0, 0, 0, 0, 1, 1, 1)),
    text((258, 72, 105, 111, 257, 259), (257,)),
    text((258,), (80, 81, 82, 83, 84, 85, 86, 87, 88, 257)),
    text((9,), (80, 257)),
]


def plain(decoder, adapter, texts):
    """Cross-entropy of torch's own, one text after the other, over the logits of every position."""
    logits, targets = [], []
    for one in texts:
        ids = [*one.prompt, *one.rest.tolist()]
        marks = [False] * len(one.prompt) + one.learnt.tolist()
        states = decoder.states(pack_text(ids, torch.device("cpu")), adapter)
        logits.append((states @ decoder.head.T)[:-1])
        targets += [t if m else -100 for t, m in zip(ids[1:], marks[1:], strict=True)]
    return F.cross_entropy(torch.cat(logits), torch.tensor(targets), ignore_index=-100)


def gradient(learner):
    parameters = dict(learner.adapter.named_parameters())
    return {name: p.grad.clone() for name, p in parameters.items()}


CUTS = {
    "in one pass": {},
    "one text at a time": {"fanout": "off"},
    "two at a time": {"fanout": 2},
    "as they fit": {"micro_batch": 12},
    "three rows of logits at a time": {"chunk": 3},
    "recomputed": {"recompute": True, "micro_batch": 12},
}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_loss_and_gradient_are_those_of_torchs_cross_entropy(decoder, cut):
    learner = learner_on(decoder, **cut)
    loss = accumulate(learner, RAGGED)
    mine = gradient(learner)
    learner.optimizer.zero_grad()
    expected = plain(decoder, learner.adapter, RAGGED)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-6)
    theirs = gradient(learner)
    for name, value in theirs.items():
        torch.testing.assert_close(mine[name], value, rtol=1e-4, atol=1e-6)
    assert max(float(value.abs().max()) for value in theirs.values()) > 1e-3


def test_a_token_counts_alike_in_a_short_text_and_in_a_long_one(decoder):
    """Not the mean of the texts' means, which would let the one token of the third text weigh as
    much as the ten of the fourth."""
    learner = learner_on(decoder)
    sums, counts = [], []
    for one in RAGGED:
        [scored] = learner.score_apart([one.prompt], [one.rest], learner.adapter)
        sums.append(float(-scored.logprobs[torch.from_numpy(one.learnt)].sum()))
        counts.append(one.tokens)
    loss = accumulate(learner, RAGGED)
    assert counts == [4, 5, 1, 10, 2]
    assert loss == pytest.approx(sum(sums) / 22, rel=1e-6)
    of_texts = np.mean([s / c for s, c in zip(sums, counts, strict=True)])
    assert abs(loss - of_texts) > 0.01


# -- which texts make a step ---------------------------------------------------------------------


@pytest.mark.parametrize(("count", "sizes"), [(1, [1]), (8, [8]), (9, [5, 4]), (20, [7, 7, 6])])
def test_an_epoch_is_dealt_out_evenly(count, sizes):
    order = TextOrder(count, shuffled=False, seed=0)
    steps = [order.of(update) for update in range(1, len(sizes) + 1)]
    assert order.steps == steps_of(count) == len(sizes)
    assert [len(step) for step in steps] == sizes
    assert list(itertools.chain(*steps)) == list(range(count))
    assert order.of(len(sizes) + 1) == steps[0], "the next epoch begins again"
    assert max(sizes) <= TEXTS_PER_STEP


def test_shuffled_epochs_have_each_text_once_and_an_order_of_their_own():
    order = TextOrder(20, shuffled=True, seed=1)
    epochs = [[t for i in (1, 2, 3) for t in order.of(3 * epoch + i)] for epoch in range(3)]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert order.of(5) == order.of(5), "a function of the place alone"
    assert TextOrder(20, shuffled=True, seed=2).of(1) != order.of(1)


# -- whole runs ----------------------------------------------------------------------------------


def test_a_run_learns_its_texts(model, tmp_path):
    recorder = teach(tmp_path, model, {"training.epochs": 30, "training.lr": 0.02})
    losses = [values["sft/loss"] for values in recorder.values.values()]
    assert losses[0] > math.log(60), "a random model is about as good as a guess among 260"
    assert losses[-1] < losses[0] / 2
    assert (recorder.outcome.status, recorder.outcome.updates) == ("completed", 60)
    [words] = recorder.messages("export_checked")
    assert words.startswith("llama.cpp computes what was trained")
    assert recorder.groups == {}
    assert recorder.outcome.findings == []


def test_the_numbers_of_an_update(model, tmp_path):
    """Ten texts are two steps of five. A constant rate of 0.01 with two steps of warm-up is a
    third of it, two thirds, and then all."""
    changes = {"training.epochs": 2, "training.warmup_steps": 2, "sft.shuffle": False}
    recorder = teach(tmp_path, model, changes)
    texts = read_text_inputs(write_texts(tmp_path, model, changes)).texts
    rows = recorder.values
    assert recorder.info.updates == len(rows) == 4
    assert [v["sft/texts"] for v in rows.values()] == [5.0] * 4
    tokens = [sum(t.tokens for t in texts[:5]), sum(t.tokens for t in texts[5:])]
    assert [v["sft/tokens"] for v in rows.values()] == tokens * 2
    assert [v["sft/epoch"] for v in rows.values()] == [0.5, 1.0, 1.5, 2.0]
    rates = [v["optimizer/learning_rate"] for v in rows.values()]
    assert rates == pytest.approx([0.01 / 3, 0.02 / 3, 0.01, 0.01])
    assert [v["optimizer/step"] for v in rows.values()] == [1.0, 2.0, 3.0, 4.0]
    assert set(recorder.status.values()) == {"trained"}
    told = {"optimizer/grad_norm", "throughput/train_tokens_per_second", "packing/passes"}
    assert told | {"timing/train_seconds", "timing/update_seconds"} < rows[1].keys()


def test_the_first_loss_is_that_of_the_base(model, decoder, tmp_path):
    recorder = teach(tmp_path, model, {"sft.shuffle": False})
    texts = read_text_inputs(write_texts(tmp_path, model)).texts[:5]
    assert recorder.values[1]["sft/loss"] == pytest.approx(plain(decoder, None, texts).item())


@pytest.mark.parametrize("changes", [{"lora.seed": 7}, {"sft.shuffle": False}], ids=str)
def test_the_seed_draws_the_order_unless_it_is_that_of_the_file(model, tmp_path, changes):
    one = teach(tmp_path / "one", model, {"training.epochs": 2})
    other = teach(tmp_path / "other", model, {"training.epochs": 2} | changes)
    first, second = (
        [v["sft/tokens"] for v in recorder.values.values()] for recorder in (one, other)
    )
    assert first != second
    assert sum(first) == sum(second)


def test_the_same_run_twice_is_the_same_run(model, tmp_path):
    one, other = (teach(tmp_path / name, model, {"training.epochs": 2}) for name in "ab")
    losses = [[v["sft/loss"] for v in r.values.values()] for r in (one, other)]
    assert losses[0] == losses[1]
    first, second = (exported(r.outcome.output) for r in (one, other))
    assert all(np.array_equal(value, second[name]) for name, value in first.items())


def test_plain_text_is_learnt_too(model, tmp_path):
    config = write_texts(tmp_path, model, {"sft.data": "lines.txt", "training.epochs": 3})
    (tmp_path / "lines.txt").write_text("one line\n\nanother, in full\n")
    recorder = Recorder()
    assert run(config, recorder).status == "completed"
    # the first token of each follows nothing, "in" is one token, and each has an end
    assert recorder.values[1]["sft/tokens"] == (7 - 1 + 1) + (15 - 1 + 1)
    assert recorder.values[3]["sft/loss"] < recorder.values[1]["sft/loss"]


def test_a_wish_to_stop_is_met_between_updates(model, tmp_path):
    recorder = teach(tmp_path, model, {"training.epochs": 5}, stop_at="metrics 3")
    assert (recorder.outcome.status, recorder.outcome.updates) == ("stopped", 3)
    assert exported(recorder.outcome.output)


def test_a_loss_that_is_not_finite_ends_the_run_with_the_last_good_adapter(
    model, tmp_path, monkeypatch
):
    good = teach(tmp_path / "good", model, {"training.epochs": 5}, stop_at="metrics 3")
    spoil_from(monkeypatch, 4)
    recorder = teach(tmp_path / "bad", model, {"training.epochs": 5})
    assert (recorder.outcome.status, recorder.outcome.updates) == ("failed", 3)
    assert "the loss is inf after 3 optimizer steps" in recorder.outcome.message
    kept, expected = exported(recorder.outcome.output), exported(good.outcome.output)
    assert all(np.array_equal(value, kept[name]) for name, value in expected.items())


class Interrupted(Recorder):
    """The user presses Ctrl-C twice, in the report of the third update."""

    def metrics(self, update, status, values):
        if update == 3:
            raise KeyboardInterrupt
        super().metrics(update, status, values)


def test_an_update_that_was_not_reported_does_not_count(model, tmp_path):
    recorder = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        run(write_texts(tmp_path, model, {"training.epochs": 3}), recorder)
    assert (recorder.outcome.status, recorder.outcome.updates) == ("stopped", 2)
    expected = teach(tmp_path / "two", model, {"training.epochs": 3}, stop_at="metrics 2")
    kept = exported(recorder.outcome.output)
    for name, value in exported(expected.outcome.output).items():
        assert np.array_equal(value, kept[name])


def test_what_is_learnt_is_said_before_the_run(model, tmp_path):
    recorder = teach(tmp_path, model)
    texts = read_text_inputs(write_texts(tmp_path, model)).texts
    learnt = sum(t.tokens for t in texts)
    longest = max(t.length for t in texts)
    assert recorder.info.facts["texts"] == (
        f"{len(TALKS)}, at most {longest} tokens; {learnt} tokens are learnt"
    )
