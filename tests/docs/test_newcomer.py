"""What a page tells its reader to type is typed, in order, in a folder of its own.

`docs/quickstart.md` is the newcomer's script: it begins in an empty folder and may take ten
minutes, on a machine on which retrograd is installed. Other pages find the files that they speak
of. What is marked `long` belongs to the full tests.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from doc_pages import ALL, ROOT

from trainer.config import load_config
from trainer.monitor import JsonlMonitor
from trainer.run import run

QUICKSTART = "docs/quickstart.md"
TEN_MINUTES = 600
LONG = ("docs/checkpoints.md", "docs/operations.md")
TRAINED = ("docs/health.md", "docs/observing.md")
"""Pages that read what a run has left."""
WALKED = sorted({b.page for b in ALL if b.verb == "runs"} - {QUICKSTART, "README.md"})

SMALL = """
[run]
algorithm = "grpo"
name = "sums"
[model]
path = "base.gguf"
[output]
path = "adapter.gguf"
[lora]
rank = 4
alpha = 8.0
[training]
ctx = 64
lr = 0.002
[grpo]
prompts = "prompts.jsonl"
reward_command = ["python3", "reward.py"]
updates = 2
prompts_per_update = 2
group_size = 4
grpo_epochs = 1
clip_range_low = 0.2
clip_range_high = 0.28
kl_coefficient = 0.0
[grpo.sampling]
temperature = 1.0
top_p = 1.0
max_new_tokens = 8
seed = 1
[observe]
directory = "runs/sums"
"""


@pytest.fixture
def environment(tmp_path):
    """A newcomer's: a home, store and cache of their own, and retrograd on the PATH."""
    kept = ("LANG", "PIP_INDEX_URL", "PIP_CONFIG_FILE", "PIP_FIND_LINKS", "PYTHONPATH")
    settings = {name: os.environ[name] for name in kept if name in os.environ}
    folder = str(Path(sys.executable).parent)
    return settings | {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "RETROGRAD_STORE": str(tmp_path / "store.db"),
        "RETROGRAD_CACHE": os.environ["RETROGRAD_CACHE"],
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2"),
        "NO_COLOR": "1",
    }


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "work"
    made.mkdir()
    return made


def furnished(folder, tiny):
    """The files that pages speak of, with the tiny model in every model's place."""
    (folder / "models").mkdir()
    for name in ("base.gguf", "model.gguf", "models/SmolLM2-135M-Instruct.Q4_1.gguf"):
        shutil.copyfile(tiny, folder / name)
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("runs"))
    shutil.copyfile(ROOT / "examples/tiny/prompts.jsonl", folder / "prompts.jsonl")
    shutil.copyfile(ROOT / "examples/smoke_rl_reward.py", folder / "reward.py")
    (folder / "grpo.toml").write_text(SMALL, encoding="utf-8")


def walk(page, folder, environment, *, everything, without=()):
    """Write the files and run the blocks of a page. Returns how often each verb came, and all that
    was printed."""
    done, said = {"file": 0, "runs": 0}, []
    for block in (b for b in ALL if b.page == page and b.verb in ("file", "runs")):
        if block in without or (block.is_long and not everything):
            continue
        if block.verb == "file":
            (folder / block.subject).write_text(block.text, encoding="utf-8")
        else:
            said.append(execute(block, folder, environment))
        done[block.verb] += 1
    return done, "\n".join(said)


def execute(block, folder, environment):
    command = ["sh", "-e", "-c"] if block.is_shell else [sys.executable, "-c"]
    began = time.monotonic()
    ran = subprocess.run(
        [*command, block.text],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )
    print(f"{block.where}: {time.monotonic() - began:.1f} s")
    assert ran.returncode == 0, f"{block.where}\n{block.text}\n{ran.stdout}"
    return ran.stdout


def in_ten_minutes(folder, environment, **options):
    began = time.monotonic()
    done, said = walk(QUICKSTART, folder, environment, **options)
    took = time.monotonic() - began
    print(f"{QUICKSTART}: {took:.0f} s of {TEN_MINUTES}")
    assert took < TEN_MINUTES
    return done, said


@pytest.fixture
def fetched(smollm2, folder):
    """The model that the page's first command brings. Its other tests have fetched it, so that the
    command finds it and only checks its bytes."""
    (folder / "models").mkdir()
    shutil.copyfile(smollm2, folder / "models" / smollm2.name)


@pytest.mark.full
def test_a_newcomer_sees_two_updates_in_ten_minutes(folder, environment, fetched):
    done, said = in_ten_minutes(folder, environment, everything=False)
    assert done == {"file": 4, "runs": 5}
    assert "16 prompts" in said
    assert "4 answers scored" in said or "3 answers scored" in said
    assert "update 2/2: reward" in said
    assert (folder / "first.gguf").is_file()


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_a_newcomer_trains_a_model_in_ten_minutes_from_an_empty_folder(folder, environment):
    done, said = in_ten_minutes(folder, environment, everything=True)
    assert done == {"file": 4, "runs": 6}
    assert (folder / "adapter.gguf").is_file()
    rewards = [float(reward) for reward in re.findall(r"/12: reward (-?[\d.]+)", said)]
    assert len(rewards) == 12
    assert sum(rewards[-4:]) / 4 > sum(rewards[:4]) / 4 + 0.1


@pytest.fixture(scope="module")
def left_by_a_run(tmp_path_factory, tiny):
    """The folder in which a run has left its records."""
    folder = tmp_path_factory.mktemp("trained")
    furnished(folder, tiny)
    config = load_config(folder / "grpo.toml")
    records = JsonlMonitor(config.observe.directory, every=1, max_text_chars=0)
    assert run(config, records).status == "completed"
    return folder / "runs" / "sums"


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=pytest.mark.full) if p in LONG else p for p in WALKED],
)
def test_what_a_page_runs_works_where_its_files_are(page, folder, environment, tiny, request):
    furnished(folder, tiny)
    if page in TRAINED:
        shutil.copytree(request.getfixturevalue("left_by_a_run"), folder / "runs" / "sums")
    done, _ = walk(page, folder, environment, everything=False)
    assert done["runs"] > 0


def test_the_readmes_own_run_leaves_an_adapter_and_its_records(folder, environment, fetched, tiny):
    """In a folder with no file but the model, which the first command fetches; the tiny one takes
    its place to train: README shows all the others."""
    fetch = next(b for b in ALL if b.page == "README.md" and b.verb == "runs")
    assert "retrograd fetch" in fetch.text
    assert "SmolLM2-135M-Instruct.Q4_1.gguf" in execute(fetch, folder, environment)
    shutil.copyfile(tiny, folder / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf")
    _, said = walk("README.md", folder, environment, everything=False, without=[fetch])
    assert "24/24" in said
    assert (folder / "adapter.gguf").is_file()
    records = map(json.loads, (folder / "observe.jsonl").read_text(encoding="utf-8").splitlines())
    assert sum(record["type"] == "update" for record in records) == 24
    assert (folder / "prompts.jsonl").read_text(encoding="utf-8").count("\n") == 6
