"""Runs whose result is a merged model: what they leave, and what they say of it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from small_runs import SMALL, Recorder, exported, rewards, spoil_from, teach, train, write_run

from trainer import ending
from trainer.check import check
from trainer.errors import ConfigError
from trainer.gguf.file import GgufFile
from trainer.merge import plan as planning
from trainer.merge.merging import merge
from trainer.merge.plan import make_plan
from trainer.run import run

LIVE = (0.0, 1.0, 0.5, 2.0)
MODEL = {"output.kind": "model", "output.path": "out/merged.gguf"}
ADAPTER = "out/merged.adapter.gguf"


@pytest.fixture(scope="module")
def model(random_llama):
    return random_llama(**SMALL)


def left(folder):
    return sorted(p.name for p in (folder / "out").iterdir() if p.suffix == ".gguf")


@pytest.fixture(scope="module")
def finished(model, tmp_path_factory):
    """A run of two updates that ended with a model; its folder, and what it said."""
    folder = tmp_path_factory.mktemp("finished")
    return folder, train(folder, model, rewards(LIVE), MODEL | {"grpo.updates": 2})


def test_a_run_ends_with_the_merged_model_and_its_adapter_beside(finished, model, tmp_path):
    folder, recorder = finished
    outcome = recorder.outcome
    assert (outcome.status, outcome.updates) == ("completed", 2)
    assert outcome.output == str(folder / "out" / "merged.gguf")
    assert outcome.adapter == str(folder / ADAPTER)
    assert left(folder) == ["merged.adapter.gguf", "merged.gguf"]
    plain = train(tmp_path, model, rewards(LIVE), {"grpo.updates": 2})
    assert plain.outcome.adapter is None
    mine, theirs = exported(outcome.adapter), exported(plain.outcome.output)
    assert all(np.array_equal(mine[name], theirs[name]) for name in mine.keys() | theirs.keys())


def test_the_model_is_what_the_command_makes_of_the_adapter(finished, model, tmp_path):
    folder, _ = finished
    plan = make_plan(model, folder / ADAPTER, "f16")
    merge(plan, tmp_path / "own.gguf", lambda _: None, threads=1)
    assert (tmp_path / "own.gguf").read_bytes() == (folder / "out/merged.gguf").read_bytes()
    assert set(GgufFile(tmp_path / "own.gguf").type_counts()) == {"F16", "F32"}


def test_the_model_was_compared_in_llama_cpp(finished):
    _, recorder = finished
    (event,) = [e for e in recorder.events if e.code == "merge_checked"]
    assert 0 < event.data["gap"] < 0.01
    assert event.data["change"] > 1e-3
    codes = [e.code for e in recorder.events]
    assert codes.index("export_checked") < codes.index("merging") < codes.index("merge_checked")


def test_whoever_watches_is_told_when_merging_begins(finished):
    _, recorder = finished
    calls = recorder.calls
    assert (
        calls.index("event merging") < calls.index("merge 0/0") < calls.index("event merge_checked")
    )
    assert not [call for call in calls[calls.index("merge 0/0") :] if call.startswith("generate")]


def test_a_model_that_computes_something_else_is_not_taken(model, tmp_path, monkeypatch):
    """As when rows of the sum went astray."""
    monkeypatch.setattr(ending, "make_plan", lambda base, adapter: wrong(make_plan(base, adapter)))
    recorder = train(tmp_path, model, rewards(LIVE), MODEL)
    assert recorder.outcome.status == "failed"
    assert "the sum of blk.0.attn_output.weight and what" in recorder.outcome.message
    assert left(tmp_path) == ["merged.adapter.gguf"]


def wrong(plan):
    """The plan with the rows of one matrix turned round."""
    original = plan.rewriting.rows

    def rows(name):
        for block in original(name):
            yield block[::-1] if name.endswith("attn_output.weight") else block

    object.__setattr__(plan.rewriting, "rows", rows)
    return plan


def test_sft_too(random_llama, tmp_path):
    recorder = teach(tmp_path, random_llama(**SMALL), MODEL | {"training.epochs": 1})
    assert recorder.outcome.status == "completed"
    assert left(tmp_path) == ["merged.adapter.gguf", "merged.gguf"]


def test_a_run_that_is_asked_to_stop_merges_what_it_has(model, tmp_path):
    changes = MODEL | {"grpo.updates": 9}
    recorder = train(tmp_path, model, rewards(LIVE), changes, stop_at="metrics 2")
    assert (recorder.outcome.status, recorder.outcome.updates) == ("stopped", 2)
    assert left(tmp_path) == ["merged.adapter.gguf", "merged.gguf"]


def test_a_run_that_goes_on_ends_with_the_same_model(finished, model, tmp_path):
    changes = MODEL | {"grpo.updates": 2}
    train(tmp_path, model, rewards(LIVE), changes, stop_at="metrics 1")
    config = write_run(tmp_path, model, rewards(LIVE), changes)
    again = run(config, Recorder(), resume_from=tmp_path / "out" / "merged.checkpoints")
    assert (again.status, again.updates) == ("completed", 2)
    mine, theirs = GgufFile(Path(again.output)), GgufFile(Path(finished[1].outcome.output))
    assert all(np.array_equal(mine.read(name), theirs.read(name)) for name in mine.tensors)


def test_a_run_that_has_ended_is_given_a_model_afterwards(model, tmp_path):
    train(tmp_path, model, rewards(LIVE), {"output.path": "out/merged.gguf"})
    config = write_run(tmp_path, model, rewards(LIVE), MODEL)
    again = run(config, Recorder(), resume_from=tmp_path / "out" / "merged.checkpoints")
    assert (again.status, again.updates) == ("completed", 1)
    assert GgufFile(tmp_path / "out/merged.gguf").text("general.type") == "model"
    assert left(tmp_path) == ["merged.adapter.gguf", "merged.gguf"]


def test_a_merged_models_adapter_can_be_begun_with(finished, model, tmp_path):
    folder, _ = finished
    own = dict.fromkeys(("lora.rank", "lora.alpha", "lora.dtype"))
    start = {"lora.init_adapter": str(folder / ADAPTER), **own}
    second = train(tmp_path, model, rewards(LIVE), MODEL | start)
    assert second.outcome.status == "completed"
    # its own place is taken by what it reads
    changes = MODEL | start | {"output.path": str(folder / "out/merged.gguf")}
    with pytest.raises(ConfigError, match=r"adapter\.gguf: the run reads or writes this file"):
        run(write_run(tmp_path, model, rewards(LIVE), changes), Recorder())


# -- no work is lost -----------------------------------------------------------------------------


def test_a_run_that_fails_keeps_its_adapter_and_says_how_to_merge(model, tmp_path, monkeypatch):
    spoil_from(monkeypatch, 3)
    recorder = train(tmp_path, model, rewards(LIVE), MODEL | {"grpo.updates": 9})
    outcome = recorder.outcome
    assert (outcome.status, outcome.output) == ("failed", None)
    assert outcome.adapter == str(tmp_path / ADAPTER)
    assert left(tmp_path) == ["merged.adapter.gguf"]
    assert outcome.message.endswith(
        f"the last completed one, is in {tmp_path / ADAPTER}. It is merged by: retrograd merge "
        f"{model} {tmp_path / ADAPTER} --to {tmp_path / 'out/merged.gguf'}"
    )


def test_the_command_that_merges_replaces_an_earlier_model(model, tmp_path, monkeypatch):
    assert train(tmp_path, model, rewards(LIVE), MODEL).outcome.status == "completed"
    spoil_from(monkeypatch, 3)
    recorder = train(tmp_path, model, rewards(LIVE), MODEL | {"grpo.updates": 9})
    assert recorder.outcome.message.endswith(f"--to {tmp_path / 'out/merged.gguf'} --force")


def test_a_disk_that_filled_up_meanwhile_costs_the_model_alone(model, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    calls = iter([1 << 40])
    monkeypatch.setattr(planning.shutil, "disk_usage", lambda _: usage(0, 0, next(calls, 1 << 20)))
    recorder = train(tmp_path, model, rewards(LIVE), MODEL)
    outcome = recorder.outcome
    assert (outcome.status, outcome.updates, outcome.output) == ("failed", 1, None)
    assert "the model could not be written: " in outcome.message
    assert "merging needs" in outcome.message
    assert f"is in {tmp_path / ADAPTER}. It is merged by: retrograd merge" in outcome.message
    assert outcome.adapter == str(tmp_path / ADAPTER)
    assert left(tmp_path) == ["merged.adapter.gguf"]


RUN = """
import signal
import sys
from pathlib import Path
from trainer.config import load_config
from trainer.monitor.base import SilentMonitor
from trainer.run import run

class Told(SilentMonitor):
    def event(self, event):
        print(event.code, flush=True)

    def run_finished(self, outcome):
        print(outcome.status, outcome.updates, outcome.output, outcome.adapter, flush=True)

signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the tests were started by
run(load_config(Path(sys.argv[1])), Told())
"""


def test_ctrl_c_while_it_merges_keeps_the_adapter_as_it_is(random_llama, tmp_path):
    """In a process of its own, once the merge has begun to write."""
    slow = {"width": 256, "ff_width": 1024, "heads": 4, "kv_heads": 4, "head_size": 64}
    write_run(tmp_path, random_llama(**SMALL | slow), rewards(LIVE), MODEL)
    command = [sys.executable, "-c", RUN, str(tmp_path / "run.toml")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    until(lambda: list((tmp_path / "out").glob(".merged.gguf.*")) or process.poll() is not None)
    exported = (tmp_path / ADAPTER).stat()
    process.send_signal(signal.SIGINT)
    said, words = process.communicate(timeout=60)
    *events, outcome = said.splitlines()
    assert words.strip().endswith("KeyboardInterrupt")
    assert (events.count("export_checked"), events[-1]) == (1, "merging")
    assert outcome == f"stopped 1 None {tmp_path / ADAPTER}"
    assert left(tmp_path) == ["merged.adapter.gguf"]
    assert list((tmp_path / "out").glob(".*.partial")) == []
    # the same file, and not one that was exported and compared again
    after = (tmp_path / ADAPTER).stat()
    assert (after.st_ino, after.st_mtime_ns) == (exported.st_ino, exported.st_mtime_ns)


def until(holds, seconds=60.0):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to this"
        time.sleep(0.005)


# -- before the run ------------------------------------------------------------------------------


def refusal(config):
    recorder = Recorder()
    with pytest.raises(ConfigError) as refused:
        run(config, recorder)
    assert recorder.calls == []
    return str(refused.value)


def test_a_disk_without_room_for_the_model_is_known_before_the_run(model, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(planning.shutil, "disk_usage", lambda _: usage(0, 0, 1 << 20))
    message = refusal(write_run(tmp_path, model, rewards(LIVE), MODEL))
    assert "run.toml:" in message
    assert "MiB there for a while, and 1 MiB are free" in message


def test_neither_a_strangers_model_nor_the_base_is_replaced(random_llama, tmp_path):
    base = random_llama(**SMALL)
    other = tmp_path / "other.gguf"
    other.write_bytes(base.read_bytes())
    changes = MODEL | {"output.path": str(other)}
    message = refusal(write_run(tmp_path, base, rewards(LIVE), changes))
    assert "is a model that retrograd did not make, so it is not replaced" in message
    (tmp_path / "link.gguf").symlink_to(base)
    changes = MODEL | {"output.path": str(tmp_path / "link.gguf")}
    assert "reads or writes this file itself" in refusal(
        write_run(tmp_path, base, rewards(LIVE), changes)
    )


def test_check_tells_both_files(model, tmp_path):
    config = write_run(tmp_path, model, rewards(LIVE), MODEL)
    (found,) = [f for f in check(config).findings if f.title == "output"]
    assert found.level == "ok"
    assert found.detail == (
        f"{tmp_path / 'out/merged.gguf'}, with the adapter in {tmp_path / ADAPTER}"
    )
    (tmp_path / ADAPTER).write_bytes(b"GGUF, an earlier adapter")
    (found,) = [f for f in check(config).findings if f.title == "output"]
    assert found.detail == f"{tmp_path / ADAPTER} exists, and the run would replace it"
