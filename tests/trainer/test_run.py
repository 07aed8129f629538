"""How a run begins and ends, as its monitor and its user see it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from left_over import nothing_left
from small_runs import SMALL, Recorder, exported, rewards, train, write_run

from trainer.errors import ConfigError, DataError, ModelError, RewardError
from trainer.run import run

LIVE, DEAD = [0.0, 1.0, 0.0, 2.0], [1.0] * 4


@pytest.fixture(scope="module")
def model(random_llama):
    return random_llama(**SMALL)


no_process_is_left = pytest.fixture(autouse=True)(nothing_left)


def same_adapter(one, other):
    a, b = exported(one.outcome.output), exported(other.outcome.output)
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_the_journal_tells_what_the_chat_template_was_given_and_does(random_llama, tmp_path):
    template = "{{ strftime_now('%j') }}{{ style }}{{ messages[0].content }}<|end|>"
    dated = random_llama(**SMALL, template=template)
    recorder = train(tmp_path, dated, rewards(LIVE), {"model.template_variables.style": "in"})
    [event] = [event for event in recorder.events if event.code == "template"]
    assert event.level == "warning"
    assert "writes today's date into the conversations" in event.message
    assert recorder.info.facts["template variables"] == '{"style": "in"}'
    assert recorder.info.params["model"]["template_variables"] == {"style": "in"}


# -- a run that ends as planned ------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    changes = {"run.name": "sums", "grpo.updates": 3, "grpo.prompts_per_update": 2}
    folder = tmp_path_factory.mktemp("whole")
    return train(folder, model, rewards(LIVE + DEAD), changes, prompts=["one", "two three"])


def test_a_completed_run_exports_and_checks_its_adapter(whole):
    assert whole.outcome.status == "completed"
    assert whole.outcome.updates == 3
    assert whole.outcome.message == "completed after 3 updates"
    assert any(factor.any() for name, factor in exported(whole.outcome.output).items())
    [event] = [e for e in whole.events if e.code == "export_checked"]
    assert event.data["gap"] < 1e-5 < 0.005 < event.data["change"]


def test_the_monitor_hears_the_start_first_and_the_end_last_and_once(whole):
    assert whole.calls[0] == "run_started"
    assert whole.calls[-1] == "run_finished"
    assert (whole.calls.count("run_started"), whole.calls.count("run_finished")) == (1, 1)
    assert list(whole.groups) == list(whole.values) == [1, 2, 3]
    for update in (1, 2, 3):
        place = whole.calls.index(f"trajectories {update}")
        # told before the passes: should one of them fail, these answers are what explains it
        assert whole.calls[place : place + 4] == [
            f"trajectories {update}",
            "score 1/1",
            "train 1/1",
            f"metrics {update}",
        ]


def test_progress_reaches_each_stages_total(whole):
    assert [c for c in whole.calls if c.startswith("prepare")] == [
        f"prepare {n}/3" for n in range(4)
    ]
    # one of the two groups carries signal; a reward is told for each of eight answers
    for end in ("generate 8/8", "reward 8/8", "score 1/1", "train 1/1"):
        assert whole.calls.count(end) == 3


def test_a_run_leaves_a_checkpoint_of_its_last_update_beside_its_result(whole):
    folder = Path(whole.outcome.output).with_name("adapter.checkpoints")
    assert [p.name for p in folder.iterdir()] == ["update-000003.ckpt"]
    [event] = [e for e in whole.events if e.code == "checkpoint"]
    assert (event.level, event.update) == ("info", 3)
    assert event.data == {"path": str(folder / "update-000003.ckpt")}
    assert whole.info.resumed_from_update is None


def test_what_is_told_at_the_start(whole):
    info = whole.info
    assert (info.name, info.algorithm, info.updates) == ("sums", "grpo", 3)
    assert info.model.endswith("model.gguf")
    assert info.output == whole.outcome.output
    assert info.params["grpo"]["group_size"] == 4
    assert info.params["training"]["ce_chunk_tokens"] == 512, "defaults are told too"
    json.dumps(info.params, allow_nan=False)
    assert info.facts["model"] == "model.gguf: llama, 1 layers of 32, 12 × F32"
    # rank 2 on (32 + 32) + 2 (16 + 32) + (32 + 32) + 3 (48 + 32)
    assert info.facts["adapter"] == (
        "rank 2 on q, k, v, o, ffn_gate, ffn_up, ffn_down: 928 parameters"
    )
    assert info.facts["prompts"] == "2, at most 12 tokens"


def test_each_group_is_told_with_its_answers(whole):
    live, dead = whole.groups[1]
    assert [(g.group, g.prompt.line, g.prompt.question) for g in (live, dead)] == [
        (0, 1, "one"),
        (1, 2, "two three"),
    ]
    assert [t.member for t in live.trajectories] == [0, 1, 2, 3]
    assert [t.reward for t in live.trajectories] == LIVE
    assert [t.reward_raw for t in live.trajectories] == LIVE
    assert [t.advantage for t in live.trajectories] == [-0.75, 0.25, -0.75, 1.25]
    assert [t.trained for t in live.trajectories] == [True] * 4
    assert [t.skip_reason for t in dead.trajectories] == ["zero_signal"] * 4
    assert [t.advantage for t in dead.trajectories] == [0.0] * 4
    for trajectory in (*live.trajectories, *dead.trajectories):
        answer = trajectory.answer
        assert 1 <= len(answer.tokens) <= 6
        assert len(answer.logprobs) == len(answer.tokens)
        assert (answer.logprobs < 0).all()
        assert answer.finished or len(answer.tokens) == 6


def test_notes_on_the_configuration_are_told_before_anything_is_computed(model, tmp_path):
    changes = {"grpo.importance_sampling_level": "sequence"}
    recorder = train(tmp_path, model, rewards(LIVE), changes)
    [message] = recorder.messages("config")
    assert "hardly ever clips" in message
    assert recorder.calls[:3] == ["run_started", "event config", "prepare 0/3"]


def test_what_the_automatic_settings_came_to_is_told(whole):
    [event] = [e for e in whole.events if e.code == "settings"]
    assert event.data == {
        "threads": 1,
        "device": "cpu",
        "micro_batch": 256,
        "generation_concurrency": 8,
        "rollout_weights": "f32",
    }


def test_the_default_ways_of_sampling_and_cutting_train_as_well(model, tmp_path):
    """An F16 copy and cache while sampling, corrected in the loss; sizes chosen by the machine."""
    defaults = dict.fromkeys(
        f"training.{key}"
        for key in (
            "rollout_weights",
            "fast_sampling_context",
            "importance_correction",
            "micro_batch",
        )
    )
    recorder = train(tmp_path, model, rewards(LIVE), defaults | {"grpo.updates": 2})
    assert recorder.outcome.status == "completed"
    [event] = [e for e in recorder.events if e.code == "settings"]
    assert event.data["rollout_weights"] == "f16"
    assert 256 <= event.data["micro_batch"] <= 1024
    for values in recorder.values.values():
        assert 0.0 < values["sampler/logprob_gap_mean"] < 0.02
        assert values["sampler/correction_capped_fraction"] == 0.0
        assert values["policy/ratio_max"] == 1.0


def test_a_run_without_any_step_has_nothing_to_export(model, tmp_path):
    recorder = train(tmp_path, model, rewards(DEAD))
    assert (recorder.outcome.status, recorder.outcome.output) == ("failed", None)
    assert recorder.outcome.message == (
        "no answer carried signal in any update, so there is nothing to export"
    )
    assert not (tmp_path / "adapter.gguf").exists()


# -- a run that is stopped -----------------------------------------------------------------------


def test_a_stop_between_updates_exports_what_was_trained(model, tmp_path):
    stopped = train(tmp_path / "9", model, rewards(LIVE), {"grpo.updates": 9}, stop_at="metrics 2")
    two = train(tmp_path / "2", model, rewards(LIVE), {"grpo.updates": 2})
    assert (stopped.outcome.status, stopped.outcome.updates) == ("stopped", 2)
    assert stopped.outcome.message == "stopped after 2 updates"
    assert "event export_checked" in stopped.calls
    assert same_adapter(stopped, two)


def test_a_stop_while_answers_are_written_drops_the_update(model, tmp_path):
    """One answer at a time, and the stop comes when the first of the second update is there."""
    changes = {"grpo.updates": 9, "training.generation_concurrency": 1}
    recorder = Recorder()

    def asked():
        return recorder.calls.count("generate 1/4") == 2

    recorder.should_stop = asked
    outcome = run(write_run(tmp_path / "9", model, rewards(LIVE), changes), recorder)
    one = train(tmp_path / "1", model, rewards(LIVE))
    assert (outcome.status, outcome.updates) == ("stopped", 1)
    assert recorder.calls[-4:] == [
        "generate 1/4",
        "event checkpoint",
        "event export_checked",
        "run_finished",
    ]
    assert same_adapter(recorder, one)


def test_a_stop_before_the_first_update_ends_without_an_adapter(model, tmp_path):
    recorder = train(tmp_path, model, rewards(LIVE), stop_at="run_started")
    assert (recorder.outcome.status, recorder.outcome.updates) == ("stopped", 0)
    assert recorder.outcome.output is None
    assert recorder.outcome.message == "no update was completed, so there is nothing to export"


def test_a_stop_wish_after_the_last_update_is_a_completed_run(model, tmp_path):
    recorder = train(tmp_path, model, rewards(LIVE), {"grpo.updates": 2}, stop_at="metrics 2")
    assert recorder.outcome.status == "completed"


class Interrupted(Recorder):
    """The user presses Ctrl-C while the second update trains."""

    def progress(self, stage, done, total):
        super().progress(stage, done, total)
        if self.calls.count("train 1/1") == 2:
            raise KeyboardInterrupt


def test_an_interrupt_exports_the_last_completed_update_and_is_raised_again(model, tmp_path):
    recorder = Interrupted()
    config = write_run(tmp_path / "9", model, rewards(LIVE), {"grpo.updates": 9})
    with pytest.raises(KeyboardInterrupt):
        run(config, recorder)
    one = train(tmp_path / "1", model, rewards(LIVE))
    assert (recorder.outcome.status, recorder.outcome.updates) == ("stopped", 1)
    assert recorder.outcome.message.startswith("interrupted\nThe adapter of update 1")
    assert same_adapter(recorder, one)


# -- a run that fails ----------------------------------------------------------------------------

DIES = "def score(batch, index, request):\n    if batch == {at}: sys.exit(3)\n    return index\n"


def test_a_reward_program_that_dies_ends_the_run_with_the_last_completed_update(model, tmp_path):
    failed = train(tmp_path / "9", model, DIES.format(at=3), {"grpo.updates": 9})
    two = train(tmp_path / "2", model, DIES.format(at=0), {"grpo.updates": 2})
    assert (failed.outcome.status, failed.outcome.updates) == ("failed", 2)
    assert 'reward_command = ["python3", "reward.py"]' in failed.outcome.message
    assert "exit status 3" in failed.outcome.message
    assert failed.outcome.message.endswith(
        f"The adapter of update 2, the last completed one, is in {failed.outcome.output}."
    )
    assert same_adapter(failed, two)


def test_a_reward_program_that_dies_at_once_leaves_no_adapter(model, tmp_path):
    recorder = train(tmp_path, model, DIES.format(at=1), {"grpo.updates": 9})
    assert (recorder.outcome.status, recorder.outcome.updates) == ("failed", 0)
    assert recorder.outcome.output is None
    assert "exit status 3" in recorder.outcome.message
    assert not (tmp_path / "adapter.gguf").exists()


def test_a_reward_program_that_hangs_is_ended(model, tmp_path):
    hangs = "import time\ndef score(batch, index, request):\n    time.sleep(600)\n"
    recorder = train(tmp_path, model, hangs, {"grpo.reward_timeout_seconds": 1.0})
    assert recorder.outcome.status == "failed"
    assert "timeout" in recorder.outcome.message or "second" in recorder.outcome.message


def test_a_reward_that_is_no_number_is_an_error_and_never_a_zero(model, tmp_path):
    nan = "def score(batch, index, request):\n    return float('nan')\n"
    recorder = train(tmp_path, model, nan)
    assert recorder.outcome.status == "failed"
    assert "whose reward is NaN" in recorder.outcome.message
    assert recorder.values == {}


def test_an_adapter_that_cannot_be_written_at_the_end_is_told(model, tmp_path):
    """The folder is there at the start, and turns into a file while the run trains."""
    program = (
        "import shutil\n"
        "from pathlib import Path\n"
        "def score(batch, index, request):\n"
        "    if Path('out').is_dir():\n"
        "        shutil.rmtree('out')\n"
        "        Path('out').write_text('in the way')\n"
        "    return index\n"
    )
    config = write_run(tmp_path, model, program, {"output.path": "out/adapter.gguf"})
    recorder = Recorder()
    outcome = run(config, recorder)
    assert recorder.outcome == outcome
    assert (outcome.status, outcome.updates, outcome.output) == ("failed", 1, None)
    assert "adapter.gguf: cannot be written" in outcome.message


class Broken(Recorder):
    """A watcher with a bug, not held off by a composite."""

    def metrics(self, update, status, values):
        super().metrics(update, status, values)
        if update == 2:
            raise ZeroDivisionError("in the chart")


def test_an_error_of_the_programs_own_is_told_and_raised_again(model, tmp_path):
    recorder = Broken()
    with pytest.raises(ZeroDivisionError, match="in the chart"):
        run(write_run(tmp_path / "9", model, rewards(LIVE), {"grpo.updates": 9}), recorder)
    one = train(tmp_path / "1", model, rewards(LIVE))
    assert (recorder.outcome.status, recorder.outcome.updates) == ("failed", 1)
    assert recorder.outcome.message.startswith("ZeroDivisionError: in the chart\n")
    assert same_adapter(recorder, one)


# -- a run that does not begin -------------------------------------------------------------------


class Refusing(Recorder):
    def run_started(self, info):
        raise ConnectionError("no dashboard")


def test_a_monitor_that_cannot_start_stops_the_run_before_any_compute(model, tmp_path):
    recorder = Refusing()
    with pytest.raises(ConnectionError, match="no dashboard"):
        run(write_run(tmp_path, model, rewards(LIVE)), recorder)
    assert recorder.calls == []
    assert not (tmp_path / "adapter.gguf").exists()


def refusal(config, kind):
    """The message with which ``run`` refuses, before the monitor hears anything."""
    recorder = Recorder()
    with pytest.raises(kind) as caught:
        run(config, recorder)
    assert recorder.calls == []
    assert caught.value.exit_status == 2
    return str(caught.value)


def test_a_missing_model_is_named(tmp_path):
    config = write_run(tmp_path, tmp_path / "gone.gguf", rewards(LIVE))
    assert "gone.gguf: there is no such file" in refusal(config, ModelError)


def test_an_output_that_is_a_folder_is_named(model, tmp_path):
    config = write_run(tmp_path, model, rewards(LIVE), {"output.path": "."})
    assert f"{tmp_path}: this is a folder" in refusal(config, ConfigError)


def test_a_bad_prompt_line_is_named(model, tmp_path):
    config = write_run(tmp_path, model, rewards(LIVE))
    (tmp_path / "prompts.jsonl").write_text('\n{"messages": [{"role": "user"}]}\n')
    assert f"{tmp_path / 'prompts.jsonl'}:2: " in refusal(config, DataError)


def test_a_prompt_that_cannot_fit_is_named_with_its_length(model, tmp_path):
    config = write_run(tmp_path, model, rewards(LIVE), prompts=["short", "x" * 60])
    message = refusal(config, DataError)
    assert "prompts.jsonl:2:" in message
    assert "63 tokens" in message


def test_a_target_without_a_match_is_named(model, tmp_path):
    config = write_run(tmp_path, model, rewards(LIVE), {"lora.targets": ["q", "attn_qkv"]})
    assert "'attn_qkv' matches no matrix" in refusal(config, ConfigError)


def test_what_is_not_available_yet_is_refused(model, tmp_path):
    config = write_run(tmp_path, model, rewards(LIVE), {"reference.model": "other.gguf"})
    assert "reference is not available yet" in refusal(config, ConfigError)


def test_a_reward_command_that_is_not_there_fails_the_run_that_was_announced(model, tmp_path):
    changes = {"grpo.reward_command": ["no-such-program-here"]}
    recorder = Recorder()
    with pytest.raises(RewardError, match="no-such-program-here"):
        run(write_run(tmp_path, model, rewards(LIVE), changes), recorder)
    assert (recorder.outcome.status, recorder.outcome.updates) == ("failed", 0)
    assert "no-such-program-here" in recorder.outcome.message
