"""SFT from the command line: a run, a check, a signal, kills."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from small_runs import Recorder, exported

from trainer.config import Overrides, load_config
from trainer.run import run

CONFIG = """\
[run]
algorithm = "sft"

[model]
path = "{model}"

[output]
path = "out/adapter.gguf"

[training]
ctx = 64
threads = 1
epochs = {epochs}
lr_scheduler = "cosine"

[checkpoint]
every_steps = 1

[sft]
data = "texts.jsonl"

[observe]
directory = "out"
"""


@pytest.fixture
def config(tmp_path, random_llama):
    """A run of two steps an epoch on a random model."""

    def write(epochs: int = 2, name: str = "sft.toml") -> Path:
        roles = ("user", "assistant")
        lines = [
            {"messages": [{"role": r, "content": f"{r[:2]} {i}" * (1 + i % 3)} for r in roles]}
            for i in range(12)
        ]
        (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, lines)))
        path = tmp_path / name
        path.write_text(CONFIG.format(model=random_llama(), epochs=epochs))
        return path

    return write


def test_a_run_shows_its_loss_and_leaves_an_adapter(retrograd, config, tmp_path):
    done = retrograd("train", config())
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert lines[0] == "run sft: SFT, 4 updates"
    assert "  loss: mean over the tokens that the step learns of −log p, in nats" in lines
    updates = [line for line in lines if line.startswith("update ")]
    assert len(updates) == 4
    assert re.fullmatch(
        r"update 2/4: loss \d\.\d{3} \([+-]\d\.\d{3}\), epoch 1\.00, tokens [\d.]+, "
        r"learning rate \S+, grad norm \S+, \S+ = train \S+",
        updates[1],
    )
    assert "reward" not in done.stderr
    assert any(line.startswith("Finished 4 of 4 updates") for line in lines)
    assert "--lora" in done.stderr
    records = map(json.loads, (tmp_path / "out/observe.jsonl").read_text().splitlines())
    kinds = [(r["type"], r.get("status")) for r in records]
    assert kinds == [("run", None)] + [("update", "trained")] * 4


def test_a_check_says_that_it_can_start(retrograd, config):
    done = retrograd("check", config())
    assert done.returncode == 0, done.stdout
    assert "12 texts of at most" in done.stdout
    assert "This run can start: 0 errors, 0 warnings." in done.stdout


def test_a_line_that_cannot_be_learnt_ends_it_before_the_model_is_opened(
    retrograd, config, tmp_path
):
    path = config()
    with (tmp_path / "texts.jsonl").open("a") as file:
        file.write('\n{"messages": [{"role": "user", "content": "and?"}]}\n')
    done = retrograd("train", path)
    assert done.returncode == 2
    assert "texts.jsonl:13: the conversation ends with the role user" in done.stderr
    assert "Traceback" not in done.stderr


def until(child: subprocess.Popen[str], beginning: str) -> None:
    """Read what a run says up to a line that begins so."""
    said = []
    while not (said and said[-1].startswith(beginning)):
        said.append(child.stderr.readline())
        assert said[-1], "".join(said)


def started(retrograd_path: Path, *arguments: str | Path) -> subprocess.Popen[str]:
    command = [str(retrograd_path), "train", *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@pytest.mark.full
def test_ctrl_c_lets_the_update_at_hand_end_and_keeps_the_adapter(retrograd_path, config, tmp_path):
    path = config(epochs=2000)
    with started(retrograd_path, path) as child:
        until(child, "update 3/")
        child.send_signal(signal.SIGINT)
        said = child.stderr.read()
        assert child.wait(timeout=60) == 130, said
    assert re.search(r"Stopped after \d+ of 4000 updates", said)
    assert "Traceback" not in said
    assert (tmp_path / "out/adapter.gguf").read_bytes()[:4] == b"GGUF"


@pytest.mark.full
@pytest.mark.parametrize(("kills", "epochs"), [(2, 15), (20, 200)])
def test_killed_at_random_moments_a_run_can_always_go_on_to_the_same_end(
    retrograd_path, config, tmp_path, kills, epochs
):
    """A save follows every step, so that many of the kills meet one."""
    path, moments = config(epochs), random.Random(kills)
    folder = tmp_path / "out/adapter.checkpoints"
    for _ in range(kills):
        resume = ["--resume"] if any(folder.glob("*.ckpt")) else []
        with started(retrograd_path, path, *resume) as child:
            until(child, "update ")
            time.sleep(moments.uniform(0, 0.15))
            child.kill()
    reached = max(int(place.stem[-6:]) for place in folder.glob("*.ckpt"))
    assert kills <= reached < 2 * epochs, "the kills met runs that were at work"
    rest = Recorder()
    run(load_config(path), rest, resume_from=folder)
    assert rest.info.resumed_from_update == reached
    whole = Overrides(output=tmp_path / "whole/adapter.gguf")
    run(load_config(path, whole), Recorder())
    mine, straight = (exported(tmp_path / d / "adapter.gguf") for d in ("out", "whole"))
    for name, value in straight.items():
        assert np.array_equal(value, mine[name])
