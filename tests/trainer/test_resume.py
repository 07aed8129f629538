"""A run that stopped and goes on: the same numbers as if it had never stopped."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest
from small_runs import (
    DEFAULTS,
    PPO,
    SFT,
    SMALL,
    Recorder,
    end_often,
    exported,
    rewards,
    talk,
    teach,
    train,
    write_run,
)

from trainer.checkpoint.file import read, write
from trainer.checkpoint.head import run_of
from trainer.config import load_config
from trainer.errors import ConfigError
from trainer.inputs import read_inputs
from trainer.resume import checkpoint_folder, identity_of, open_store, resume
from trainer.run import run

UPDATES, STOP = 12, 5
PROMPTS = ["one", "two three", "four", "in five", "six"]
HELD_OUT = ["seven", "in eight", "nine"]
# A function of the answer alone: what a resumed program is asked it answers as before.
BY_TEXT = "def score(batch, index, request):\n    return sum(map(ord, request['completion'])) % 7\n"

EVALUATED = {
    "evaluation.data": "held.jsonl",
    "evaluation.every_iterations": 2,
    "evaluation.patience": 20,
}
EVERY_STEP = {"checkpoint.every_steps": 1}
GRPO_ALL = EVALUATED | {
    "grpo.updates": UPDATES,
    "grpo.prompts_per_update": 2,
    "grpo.grpo_epochs": 2,
    "grpo.prompt_order": "shuffled",
    "grpo.kl_coefficient": 0.05,
    "grpo.kl_schedule.warmup_updates": 3,
    "grpo.kl_schedule.target": 0.001,
    "training.lr_scheduler": "cosine",
    "training.warmup_steps": 4,
    "training.weight_decay": 0.01,
}
# Of two answers to a prompt one pair in seven scores alike, and is replaced.
GRPO_DYNAMIC = GRPO_ALL | {"grpo.group_size": 2, "grpo.dynamic_sampling.max_resample_factor": 3}
GRPO_JUDGED = GRPO_ALL | {
    "grpo.judge_weight": 1.0,
    "grpo.judge.type": "command",
    "grpo.judge.command": ["python3", "judge.py"],
}
# Prefers what it is shown first, so that its verdicts tell in which order the answers came.
BIASED_JUDGE = """
import json, sys
for line in sys.stdin:
    answers = json.loads(line)["answers"]
    scores = [
        {"id": a["id"], "score": (sum(map(ord, a["completion"])) % 5 + 5 / (1 + place)) / 10}
        for place, a in enumerate(answers)
    ]
    print(json.dumps({"scores": scores}), flush=True)
"""
PROBE = EVALUATED | {
    "ppo.updates": UPDATES,
    "ppo.ppo_epochs": 2,
    "ppo.minibatches": 2,
    "ppo.prompt_order": "shuffled",
    "ppo.kl_coefficient": 0.05,
    "ppo.kl_anchor": "reference",
    "ppo.kl_control.target": 0.01,
    "ppo.kl_control.horizon": 40,
    "training.lr_scheduler": "linear",
}
SHARED = PROBE | {"ppo.critic.kind": "shared"}
WITHOUT = PROBE | {"ppo.critic.enabled": False}
SFT_ALL = EVALUATED | {
    # ten texts are two steps of an epoch
    "training.epochs": UPDATES // 2,
    "evaluation.every_iterations": 1,
    "training.lr_scheduler": "cosine",
    "training.warmup_steps": 4,
    "training.weight_decay": 0.01,
}
KINDS = {
    "grpo": (DEFAULTS, GRPO_ALL),
    "grpo-dynamic": (DEFAULTS, GRPO_DYNAMIC),
    "grpo-judged": (DEFAULTS, GRPO_JUDGED),
    "ppo-probe": (PPO, PROBE),
    "ppo-shared": (PPO, SHARED),
    "ppo-without": (PPO, WITHOUT),
    "sft": (SFT, SFT_ALL),
}


@pytest.fixture(scope="module")
def model(random_llama):
    return end_often(random_llama(**SMALL))


def hold_out(folder, questions=HELD_OUT, *, answers=()):
    folder.mkdir(parents=True, exist_ok=True)
    lines = [talk([q, *answers]) for q in questions]
    (folder / "held.jsonl").write_text("\n".join(lines), encoding="utf-8")


def go(folder, model, kind, changes=(), *, stop_at=None, reward=BY_TEXT):
    base, own = KINDS[kind]
    if base is SFT:
        hold_out(folder, answers=["it is in"])
        return teach(folder, model, own | dict(changes), stop_at=stop_at)
    hold_out(folder)
    (folder / "judge.py").write_text(BIASED_JUDGE, encoding="utf-8")
    return train(
        folder, model, reward, own | dict(changes), prompts=PROMPTS, stop_at=stop_at, base=base
    )


def go_on(folder, place=None, *, stop_at=None):
    config = load_config(folder / "run.toml")
    recorder = Recorder(stop_at)
    run(config, recorder, resume_from=place or checkpoint_folder(config))
    return recorder


def numbers(values):
    """The metrics that do not tell of the machine."""
    return {
        name: value
        for name, value in values.items()
        if not name.startswith(("timing/", "throughput/", "system/", "judge/latency"))
    }


def answers(groups):
    """All that is told of the answers of one update."""
    return [
        (
            group.group,
            group.prompt.key,
            t.member,
            t.answer.tokens.tolist(),
            t.answer.logprobs.tolist(),
            t.reward,
            t.judge_term,
            t.advantage,
            t.trained,
            t.skip_reason,
        )
        for group in groups
        for t in group.trajectories
    ]


def told(recorder):
    """Metrics, answers and evaluations by update, as they are compared."""
    return {
        "metrics": {u: numbers(values) for u, values in recorder.values.items()},
        "answers": {u: answers(groups) for u, groups in recorder.groups.items()},
        "evaluations": {u: numbers(values) for u, values in recorder.evaluations.items()},
        "held out": {u: answers(groups) for u, groups in recorder.held_out.items()},
    }


def same(one, others):
    """What ``one`` run told is, bit for bit, what ``others`` told one after the other."""
    whole = told(one)
    for name, expected in whole.items():
        found = {}
        for other in others:
            found |= told(other)[name]
        assert found == expected, name
    first, last = exported(one.outcome.output), exported(others[-1].outcome.output)
    assert first.keys() == last.keys()
    for name, values in first.items():
        assert np.array_equal(values, last[name]), name


# -- the same numbers ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def straight(model, tmp_path_factory):
    """Each kind of run without a stop, made once."""
    runs = {}

    def of(kind):
        if kind not in runs:
            runs[kind] = go(tmp_path_factory.mktemp(kind), model, kind)
        return runs[kind]

    return of


FULL = {"ppo-without"}
"""What the others show as well."""


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.full if k in FULL else ()) for k in KINDS]
)
def test_a_run_that_stopped_after_five_updates_goes_on_bit_for_bit(straight, model, tmp_path, kind):
    whole = straight(kind)
    part = go(tmp_path, model, kind, stop_at=f"metrics {STOP}")
    assert (part.outcome.status, part.outcome.updates) == ("stopped", STOP)
    rest = go_on(tmp_path)
    assert list(rest.values) == list(range(STOP + 1, UPDATES + 1))
    assert rest.info.resumed_from_update == STOP
    assert rest.outcome.status == whole.outcome.status == "completed"
    assert list(whole.evaluations) == [0, 2, 4, 6, 8, 10, 12]
    assert whole.values[STOP] != whole.values[STOP + 1], "the numbers do move"
    same(whole, [part, rest])


def test_what_moves_from_update_to_update_did_move(straight):
    """Without which the comparison above would say little."""
    grpo, ppo = straight("grpo").values, straight("ppo-probe").values
    assert len({v["policy/kl_coefficient"] for v in grpo.values()}) > 4
    assert len({v["optimizer/learning_rate"] for v in grpo.values()}) > 10
    assert len({v["policy/kl_coefficient"] for v in ppo.values()}) > 4
    assert len({v["critic/value_mean"] for v in ppo.values()}) == UPDATES
    assert len({v["eval/mean_reward"] for v in straight("grpo").evaluations.values()}) > 2
    terms = {
        t.judge_term
        for groups in straight("grpo-judged").groups.values()
        for group in groups
        for t in group.trajectories
    }
    assert len(terms) > UPDATES
    drawn = [len(groups) for u, groups in straight("grpo-dynamic").groups.items() if u <= STOP]
    sft = straight("sft").values
    assert len({v["optimizer/learning_rate"] for v in sft.values()}) > 10
    assert len({v["sft/tokens"] for v in sft.values()}) > 4, "each epoch has an order of its own"
    assert sum(drawn) > 2 * STOP, "the position among the prompts is no function of the update"


@pytest.mark.parametrize(
    "kind", ["grpo", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("ppo-probe", "sft"))]
)
def test_a_run_may_stop_after_every_update(straight, model, tmp_path, kind):
    parts = [go(tmp_path, model, kind, stop_at="metrics 1")]
    for update in range(2, UPDATES + 1):
        parts.append(go_on(tmp_path, stop_at=f"metrics {update}"))
    parts.append(go_on(tmp_path))  # for the last evaluation
    same(straight(kind), parts)


@pytest.mark.parametrize("at", [2, 7])
def test_any_kept_checkpoint_leads_to_the_same_end(straight, model, tmp_path, at):
    every = EVERY_STEP | {"checkpoint.keep": UPDATES}
    go(tmp_path, model, "grpo", every)
    folder = tmp_path / "adapter.checkpoints"
    assert len(list(folder.iterdir())) == UPDATES
    rest = go_on(tmp_path, folder / f"update-{at:06d}.ckpt")
    assert list(rest.values) == list(range(at + 1, UPDATES + 1))
    whole = straight("grpo")
    assert told(rest)["metrics"] == {u: told(whole)["metrics"][u] for u in rest.values}
    assert np.array_equal(
        *(exported(r.outcome.output)["blk.0.attn_q.weight.lora_b"] for r in (whole, rest))
    )


def test_a_stop_in_the_middle_of_an_evaluation_repeats_it(straight, model, tmp_path):
    class AtTheSecondPrompt(Recorder):
        """Asks to stop when the first held-out answer of the evaluation after update 4 is there."""

        def progress(self, stage, done, total):
            super().progress(stage, done, total)
            if self.calls[-1] == "evaluate 1/3" and "metrics 4" in self.calls:
                self.calls.append("enough")

    hold_out(tmp_path)
    base, own = KINDS["ppo-probe"]
    one_by_one = {"training.generation_concurrency": 1}
    config = write_run(tmp_path, model, BY_TEXT, own | one_by_one, prompts=PROMPTS, base=base)
    part = AtTheSecondPrompt("enough")
    outcome = run(config, part)
    assert (outcome.status, outcome.updates) == ("stopped", 4)
    assert list(part.evaluations) == [0, 2]
    rest = go_on(tmp_path)
    assert rest.calls.index("evaluation 4") < rest.calls.index("trajectories 5")
    # one answer at a time is another order of sums: compared with a run of its own kind
    other = go(tmp_path / "whole", model, "ppo-probe", one_by_one)
    same(other, [part, rest])


def test_a_run_that_stopped_early_for_good_stays_where_it_is(model, tmp_path):
    """No evaluation is better than the first by 100, so two of them end the run."""
    changes = {"evaluation.patience": 2, "evaluation.min_delta": 100.0}
    early = go(tmp_path, model, "grpo", changes)
    assert (early.outcome.status, early.outcome.updates) == ("completed", 4)
    again = go_on(tmp_path)
    assert again.values == again.evaluations == {}
    assert (again.outcome.status, again.outcome.updates) == ("completed", 4)


def test_patience_is_counted_across_a_stop(model, tmp_path):
    changes = {"evaluation.patience": 2, "evaluation.min_delta": 100.0}
    go(tmp_path, model, "grpo", changes, stop_at="metrics 3")
    assert list(go_on(tmp_path).evaluations) == [4]


def test_a_finished_run_is_exported_again_and_nothing_else(straight, model, tmp_path):
    whole = go(tmp_path, model, "grpo")
    Path(whole.outcome.output).unlink()
    again = go_on(tmp_path)
    assert again.values == {}
    assert again.outcome.status == "completed"
    assert np.array_equal(
        *(
            exported(r.outcome.output)["blk.0.ffn_down.weight.lora_b"]
            for r in (straight("grpo"), again)
        )
    )


def test_the_configuration_can_ask_for_it(model, tmp_path):
    go(tmp_path, model, "grpo", stop_at=f"metrics {STOP}")
    own = GRPO_ALL | {"checkpoint.resume_from": "adapter.checkpoints"}
    rest = train(tmp_path, model, BY_TEXT, own, prompts=PROMPTS, base=DEFAULTS)
    assert rest.info.resumed_from_update == STOP
    assert rest.info.facts["resumed"].startswith("after update 5, from ")


def test_a_longer_run_keeps_steps_and_seeds_and_says_what_changes(straight, model, tmp_path):
    """Five updates as planned, then on to twelve: with a constant rate the same as twelve."""
    constant = {"training.lr_scheduler": "constant"}
    go(tmp_path, model, "ppo-probe", constant | {"ppo.updates": STOP})
    text = (tmp_path / "run.toml").read_text()
    (tmp_path / "run.toml").write_text(text.replace("updates = 5", "updates = 12"))
    rest = go_on(tmp_path)
    [message] = rest.messages("resume")
    assert "planned with 5 updates and now has 12" in message
    whole = go(tmp_path / "whole", model, "ppo-probe", constant)
    later = {u: v for u, v in told(whole)["metrics"].items() if u > STOP}
    assert told(rest)["metrics"] == later


def test_a_learning_rate_that_falls_takes_the_new_length(model, tmp_path):
    """Linear over 5 × 4 steps, then over 12 × 4: the rate after step 20 is that of step 23 of 48,
    update 6's last one, counted from 0: 0.01 × (1 − 23/48)."""
    go(tmp_path, model, "ppo-probe", {"ppo.updates": STOP})
    text = (tmp_path / "run.toml").read_text()
    (tmp_path / "run.toml").write_text(text.replace("updates = 5", "updates = 12"))
    rest = go_on(tmp_path, stop_at="metrics 6")
    rate = rest.values[6]["optimizer/learning_rate"]
    assert rate == pytest.approx(0.01 * (1 - 23 / 48), rel=1e-12)
    assert rest.values[6]["optimizer/step"] == 24


def test_a_longer_run_of_sft_is_one_of_more_epochs(model, tmp_path):
    """Six steps as planned, then on to twelve: with a constant rate the same as twelve."""
    constant = {"training.lr_scheduler": "constant"}
    go(tmp_path, model, "sft", constant | {"training.epochs": 3})
    text = (tmp_path / "run.toml").read_text()
    (tmp_path / "run.toml").write_text(text.replace("epochs = 3", "epochs = 6"))
    rest = go_on(tmp_path)
    [message] = rest.messages("resume")
    assert "planned with 3 epochs and now has 6" in message
    whole = go(tmp_path / "whole", model, "sft", constant)
    later = {u: v for u, v in told(whole)["metrics"].items() if u > 6}
    assert told(rest)["metrics"] == later


def test_fewer_epochs_than_are_made_already_are_refused(model, tmp_path):
    go(tmp_path, model, "sft", {"training.epochs": 3})
    text = (tmp_path / "run.toml").read_text()
    (tmp_path / "run.toml").write_text(text.replace("epochs = 3", "epochs = 2"))
    with pytest.raises(ConfigError) as caught:
        go_on(tmp_path)
    assert str(caught.value).endswith(
        "is after update 6 already. Ask for at least as many updates (training.epochs = 2 are 4)."
    )


# -- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("spoil", [lambda c: b"", lambda c: c[: len(c) // 3], lambda c: c[::-1]])
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_taken(
    straight, model, tmp_path, spoil
):
    go(tmp_path, model, "grpo", EVERY_STEP, stop_at=f"metrics {STOP}")
    newest = tmp_path / "adapter.checkpoints" / f"update-{STOP:06d}.ckpt"
    newest.write_bytes(spoil(newest.read_bytes()))
    rest = go_on(tmp_path)
    assert rest.info.resumed_from_update == STOP - 1
    [message] = rest.messages("resume")
    assert message.startswith(f"{newest}: is ")
    assert "the one before it is taken" in message
    assert told(rest)["metrics"] == {
        u: v for u, v in told(straight("grpo"))["metrics"].items() if u >= STOP
    }


def test_an_unfinished_file_is_no_checkpoint(model, tmp_path):
    go(tmp_path, model, "grpo", stop_at="metrics 2")
    folder = tmp_path / "adapter.checkpoints"
    (folder / "update-000003.ckpt.unfinished").write_bytes(b"half of it")
    assert go_on(tmp_path, stop_at="metrics 3").info.resumed_from_update == 2
    assert [p.name for p in folder.glob("*.unfinished")] == []


# -- saving --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("keep", "kept"), [(1, [5]), (3, [3, 4, 5])])
def test_the_newest_ones_are_kept(model, tmp_path, keep, kept):
    go(tmp_path, model, "grpo", EVERY_STEP | {"grpo.updates": 5, "checkpoint.keep": keep})
    names = sorted(p.name for p in (tmp_path / "adapter.checkpoints").iterdir())
    assert names == [f"update-{u:06d}.ckpt" for u in kept]


def test_a_folder_of_ones_own(model, tmp_path):
    changes = {"grpo.updates": 2, "checkpoint.directory": "elsewhere/saved"}
    go(tmp_path, model, "grpo", changes)
    assert [p.name for p in (tmp_path / "elsewhere/saved").iterdir()] == ["update-000002.ckpt"]
    assert not (tmp_path / "adapter.checkpoints").exists()


def test_the_best_one_by_evaluation_is_kept(model, tmp_path):
    changes = {"checkpoint.mode": "steps_and_best_eval", "evaluation.every_iterations": 1}
    changes |= {"grpo.sampling.seed": 0}
    recorder = go(tmp_path, model, "grpo", changes)
    means = {u: v["eval/mean_reward"] for u, v in recorder.evaluations.items() if u}
    best = max(means, key=means.get)
    assert means[best] > recorder.evaluations[0]["eval/mean_reward"], "or nothing is written"
    state = read(tmp_path / "adapter.checkpoints" / "best.ckpt")
    assert state["update"] == best < UPDATES
    assert (state["loop"]["evaluator"]["best"], state["loop"]["completed"]) == (means[best], best)


def test_a_full_disk_costs_the_checkpoint_and_not_the_run(straight, model, tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    class FullForOneSave(Recorder):
        """No file may grow beyond a kilobyte from the end of update 3 until the error is told. The
        sampler takes its adapter from a file too, so it must not last."""

        def metrics(self, update, status, values):
            super().metrics(update, status, values)
            if update == 3:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))

        def event(self, event):
            super().event(event)
            if event.level == "error":
                resource.setrlimit(resource.RLIMIT_FSIZE, before)

    hold_out(tmp_path)
    own = GRPO_ALL | EVERY_STEP
    recorder = FullForOneSave()
    config = write_run(tmp_path, model, BY_TEXT, own, prompts=PROMPTS)
    try:
        outcome = run(config, recorder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert outcome.status == "completed"
    [error] = [e for e in recorder.events if e.level == "error"]
    assert (error.code, error.update) == ("checkpoint", 3)
    assert "adapter.checkpoints: File too large." in error.message
    same(straight("grpo"), [recorder])


def test_a_reward_program_that_dies_leaves_a_checkpoint_to_go_on_from(straight, model, tmp_path):
    dies = "import os\n" + BY_TEXT.replace(
        "    return", "    if batch == 6 and os.path.exists('faulty'): sys.exit(3)\n    return"
    )
    (tmp_path / "faulty").touch()
    part = go(tmp_path, model, "grpo", reward=dies)
    assert part.outcome.status == "failed"
    assert 0 < part.outcome.updates < UPDATES
    (tmp_path / "faulty").unlink()
    rest = go_on(tmp_path)
    assert rest.info.resumed_from_update == part.outcome.updates
    same(straight("grpo"), [part, rest])


class Interrupted(Recorder):
    """The user presses Ctrl-C twice, while the fourth update trains."""

    def progress(self, stage, done, total):
        super().progress(stage, done, total)
        if stage == "train" and "metrics 3" in self.calls:
            raise KeyboardInterrupt


def test_half_an_update_is_never_saved(straight, model, tmp_path):
    """An update has four steps, so the last save is that of update 2, and update 3 is lost: its
    moments were changed by the fourth update when the end came."""
    hold_out(tmp_path)
    part = Interrupted()
    config = write_run(
        tmp_path, model, BY_TEXT, GRPO_ALL | {"checkpoint.every_steps": 8}, prompts=PROMPTS
    )
    with pytest.raises(KeyboardInterrupt):
        run(config, part)
    assert part.outcome.updates == 3
    names = sorted(p.name for p in (tmp_path / "adapter.checkpoints").iterdir())
    assert names == ["update-000002.ckpt"]
    rest = go_on(tmp_path)
    assert list(rest.values) == list(range(3, UPDATES + 1))
    same(straight("grpo"), [part, rest])


def test_a_run_that_stalls_is_saved_with_the_update_it_stalled_at(model, tmp_path):
    """It is then the reward program that has to change, not the run."""
    changes = {"grpo.max_stalled_updates": 2, "grpo.kl_coefficient": 0.0}
    changes |= {"grpo.kl_schedule.warmup_updates": None, "grpo.kl_schedule.target": None}
    part = go(tmp_path, model, "grpo", changes, reward=rewards([1.0]))
    assert (part.outcome.status, part.outcome.updates) == ("failed", 2)
    state = read(tmp_path / "adapter.checkpoints" / "update-000002.ckpt")["loop"]
    assert (state["completed"], state["method"]["stalled"]) == (2, 2)


# -- which runs go together ----------------------------------------------------------------------


@pytest.fixture
def saved(model, tmp_path):
    """A run of two updates that left a checkpoint."""
    go(tmp_path, model, "grpo", {"grpo.updates": 2})
    return tmp_path / "adapter.checkpoints"


def refusal(folder, model, changes=(), place=None):
    config = write_run(
        folder, model, BY_TEXT, GRPO_ALL | {"grpo.updates": 2} | dict(changes), prompts=PROMPTS
    )
    recorder = Recorder()
    with pytest.raises(ConfigError) as caught:
        run(config, recorder, resume_from=place or checkpoint_folder(config))
    assert recorder.calls == [], "refused before the run is announced"
    return str(caught.value)


def test_settings_that_differ_are_named_with_both_values(saved, model, tmp_path):
    changes = {"lora.rank": 4, "grpo.sampling.seed": 43, "grpo.kl_schedule.target": 0.5}
    message = refusal(tmp_path, model, changes)
    lines = message.splitlines()
    assert lines[0] == (
        f"{saved / 'update-000002.ckpt'}: is a checkpoint of another run. Different are"
    )
    assert lines[1:-1] == [
        "  grpo.kl_schedule.target: 0.001 at the checkpoint, 0.5 now",
        "  grpo.sampling.seed: 42 at the checkpoint, 43 now",
        "  lora.rank: 2 at the checkpoint, 4 now",
    ]
    assert lines[-1] == "Set them back, or start afresh without resuming."


def test_another_model_is_named(saved, random_llama, tmp_path):
    message = refusal(tmp_path, random_llama(**SMALL | {"seed": 1}))
    assert "model.path: is another model than the checkpoint was made with" in message


def test_other_prompts_in_the_same_file_are_named(saved, model, tmp_path):
    hold_out(tmp_path, ["something else"])
    assert "evaluation.data: the file has other contents" in refusal(tmp_path, model)


def test_another_algorithm_is_named(saved, model, tmp_path):
    hold_out(tmp_path)
    config = write_run(tmp_path, model, BY_TEXT, PROBE, prompts=PROMPTS, base=PPO)
    with pytest.raises(ConfigError, match=r"run\.algorithm: 'grpo' at the checkpoint, 'ppo' now"):
        run(config, Recorder(), resume_from=saved)


def test_fewer_updates_than_are_made_already_are_refused(saved, model, tmp_path):
    message = refusal(tmp_path, model, {"grpo.updates": 1})
    assert "run.toml:" in message
    assert "is after update 2 already. Ask for at least as many updates." in message


def test_a_place_without_a_checkpoint_is_named(model, tmp_path):
    hold_out(tmp_path)
    message = refusal(tmp_path, model, place=tmp_path / "gone")
    assert f"{tmp_path / 'gone'}: there is no such checkpoint" in message


def test_moved_files_and_another_place_for_the_result_are_fine(saved, model, tmp_path):
    there = tmp_path / "moved"
    there.mkdir()
    (there / "base.gguf").write_bytes(model.read_bytes())
    (there / "prompts.jsonl").write_bytes((tmp_path / "prompts.jsonl").read_bytes())
    (tmp_path / "held.jsonl").rename(there / "other.jsonl")
    text = (tmp_path / "run.toml").read_text()
    for old, new in (
        (str(model), "moved/base.gguf"),
        ("prompts.jsonl", "moved/prompts.jsonl"),
        ("held.jsonl", "moved/other.jsonl"),
        ("adapter.gguf", "second.gguf"),
        ("updates = 2", "updates = 3"),
    ):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "run.toml").write_text(text)
    rest = go_on(tmp_path, saved)
    assert (list(rest.values), rest.outcome.status) == ([3], "completed")
    assert [p.name for p in (tmp_path / "second.checkpoints").iterdir()] == ["update-000003.ckpt"]


# -- parts ---------------------------------------------------------------------------------------


def small(folder, model, changes=None):
    return write_run(folder, model, BY_TEXT, changes)


def test_checkpoints_lie_beside_the_output_unless_a_folder_is_named(model, tmp_path):
    assert checkpoint_folder(small(tmp_path, model)) == tmp_path / "adapter.checkpoints"
    named = small(tmp_path, model, {"checkpoint.directory": "here"})
    assert checkpoint_folder(named) == tmp_path / "here"


def test_without_a_section_two_are_kept_one_a_minute(model, tmp_path):
    store = open_store(small(tmp_path, model), "a-run")
    assert (store.keep, store.every_steps, store.run) == (2, None, "a-run")
    store = open_store(small(tmp_path, model, {"checkpoint.keep": 5}), "a-run")
    assert (store.keep, store.every_steps) == (5, 50)


def test_prompts_are_those_that_were_read_though_the_file_changes_during_the_run(model, tmp_path):
    config = small(tmp_path, model)
    before = identity_of(config, read_inputs(config))()
    ask = identity_of(config, read_inputs(config))
    (tmp_path / "prompts.jsonl").write_text("changed while the run trains")
    assert ask() == before


def test_a_run_that_does_not_ask_starts_afresh(model, tmp_path):
    config = small(tmp_path, model)
    assert resume(config, read_inputs(config), None) is None


def test_what_is_handed_to_the_run(model, tmp_path):
    config = small(tmp_path, model)
    inputs = read_inputs(config)
    state = {"identity": identity_of(config, inputs)(), "update": 1, "loop": {"completed": 1}}
    write(tmp_path / "a.ckpt", state)
    resumed = resume(config, inputs, tmp_path / "a.ckpt")
    assert (resumed.path, resumed.update) == (tmp_path / "a.ckpt", 1)
    assert (resumed.loop, resumed.remarks) == ({"completed": 1}, [])


# -- whose checkpoint it is ------------------------------------------------------------------------


@pytest.fixture
def two_runs(model, tmp_path):
    """A run that stopped after its third update, and one of the same file that began afresh in the
    same folder and stopped after its second."""
    first = go(tmp_path, model, "grpo", EVERY_STEP, stop_at="metrics 3")
    second = go(tmp_path, model, "grpo", EVERY_STEP, stop_at="metrics 2")
    return first.info.run_id, second.info.run_id


def test_a_run_keeps_its_name_and_one_that_begins_afresh_has_another(two_runs, tmp_path):
    first, second = two_runs
    assert len({first, second}) == 2
    assert go_on(tmp_path, stop_at="metrics 3").info.run_id == second
    assert go_on(tmp_path, stop_at="metrics 4").info.run_id == second


def test_resuming_a_run_never_takes_anothers_checkpoint(two_runs, tmp_path):
    first, second = two_runs
    config = load_config(tmp_path / "run.toml")
    folder = checkpoint_folder(config)
    with pytest.raises(ConfigError, match=r"no whole checkpoint of this run, but 2 checkpoints of"):
        run(config, Recorder(), resume_from=folder, run_id=first)
    rest = Recorder("metrics 3")
    run(config, rest, resume_from=folder, run_id=second)
    assert (rest.info.run_id, rest.info.resumed_from_update) == (second, 2)
    assert not [e for e in rest.events if e.code == "resume"]


def test_anothers_checkpoint_may_be_named_and_that_is_told(two_runs, tmp_path):
    first, second = two_runs
    config = load_config(tmp_path / "run.toml")
    folder = checkpoint_folder(config)
    (anothers,) = folder.glob("earlier-*/update-000003.ckpt")
    rest = Recorder("metrics 4")
    run(config, rest, resume_from=anothers, run_id=second)
    assert (rest.info.run_id, rest.info.resumed_from_update) == (second, 3)
    [told] = [e.message for e in rest.events if e.code == "resume"]
    assert told.startswith(f"{anothers} was saved by another run with the same settings")
    assert run_of(folder / "update-000004.ckpt") == second
    assert run_of(anothers) == first


def test_one_that_goes_on_with_another_output_is_a_second_run(two_runs, tmp_path):
    config = load_config(tmp_path / "run.toml")
    elsewhere = config.output.model_copy(update={"path": tmp_path / "other.gguf"})
    rest = Recorder("metrics 3")
    run(
        config.model_copy(update={"output": elsewhere}),
        rest,
        resume_from=checkpoint_folder(config),
    )
    assert rest.info.resumed_from_update == 2
    assert rest.info.run_id not in two_runs
    assert [e.code for e in rest.events if "another run" in e.message] == ["resume"]


def test_a_checkpoint_of_before_there_were_names_still_loads(two_runs, tmp_path):
    folder = checkpoint_folder(load_config(tmp_path / "run.toml"))
    (folder / "update-000001.ckpt").unlink()
    path = folder / "update-000002.ckpt"
    write(path, read(path))
    rest = go_on(tmp_path, stop_at="metrics 3")
    assert rest.info.resumed_from_update == 2
    assert len(rest.info.run_id) == 32
    assert run_of(folder / "update-000003.ckpt") == rest.info.run_id
    assert path.exists(), "it counts among the run's own"
