"""What goes wrong most often, through the installed command: message, exit status, no process left.

The runs are independent of one another, so they are made at the same time, two by two.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

PROMPTS = [json.dumps({"messages": [{"role": "user", "content": q}]}) for q in ("2 + 3?", "4 + 4?")]

# A persistent program with a process of its own below it, whose replies go wrong at the third.
REWARD = """\
import json, math, os, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"])
open("pids", "w").write(f"{os.getpid()} {child.pid}")
for count, line in enumerate(sys.stdin):
    message = json.loads(line)
    if "completion" in message:
        message = {key: message[key] for key in ("_retrograd_batch", "_retrograd_index")}
        message["reward"] = count % 2
    if count == 3:
        WHAT_GOES_WRONG
    print(json.dumps(message), flush=True)
"""


@dataclass(frozen=True)
class Case:
    """How a good run is spoiled, and what has to be said. ``reward`` is the Python statement that
    goes wrong; ``changes`` are (old, new) texts of the configuration."""

    status: int
    said: Sequence[str]
    changes: Mapping[str, str] = field(default_factory=dict)
    prompts: Sequence[str] = tuple(PROMPTS)
    reward: str = "pass"


LONG = json.dumps({"messages": [{"role": "user", "content": "1 + " * 200}]})
CASES = {
    "misspelled key": Case(
        2, ["grpo.toml", "group_sise", "group_size"], {"group_size": "group_sise"}
    ),
    "prompts missing": Case(2, ["absent.jsonl"], {"prompts.jsonl": "absent.jsonl"}),
    "prompt too long": Case(2, ["prompts.jsonl:2", "ctx"], prompts=[PROMPTS[0], LONG]),
    "bad JSONL line": Case(2, ["prompts.jsonl:2"], prompts=[PROMPTS[0], PROMPTS[1][:-3]]),
    "missing model": Case(2, ["absent.gguf", "no such file"], {"tiny.gguf": "absent.gguf"}),
    "model cut short": Case(2, ["cut.gguf"], {"tiny.gguf": "cut.gguf"}),
    "unknown architecture": Case(2, ["falcon.gguf", "'falcon'"], {"tiny.gguf": "falcon.gguf"}),
    "reward program dies": Case(
        1,
        ["exit status 3", "out of luck"],
        reward="print('out of luck', file=sys.stderr); sys.exit(3)",
    ),
    "reward program hangs": Case(
        1,
        ["reward_timeout_seconds"],
        {"[grpo.sampling]": "reward_timeout_seconds = 1.0\n[grpo.sampling]"},
        reward="time.sleep(600)",
    ),
    "reward program prints rubbish": Case(
        1, ["loading", "JSON"], reward="print('loading \\x1b[2J the judge', flush=True)"
    ),
    "reward program returns NaN": Case(1, ["NaN"], reward="message['reward'] = math.nan"),
}


@dataclass(frozen=True)
class Ended:
    done: subprocess.CompletedProcess[str]
    folder: Path


@pytest.fixture(scope="module")
def ended(retrograd, config_text, tiny, random_llama, tmp_path_factory) -> Mapping[str, Ended]:
    falcon = random_llama(architecture="falcon")
    text = config_text.replace("base.gguf", "tiny.gguf").replace('reward_mode = "oneshot"\n', "")
    text = text.replace("ctx = 64", "ctx = 64\nthreads = 1")

    def run(name: str) -> Ended:
        case, folder = CASES[name], tmp_path_factory.mktemp("failing")
        (folder / "tiny.gguf").symlink_to(tiny)
        (folder / "falcon.gguf").symlink_to(falcon)
        (folder / "cut.gguf").write_bytes(tiny.read_bytes()[: tiny.stat().st_size // 2])
        (folder / "prompts.jsonl").write_text("\n".join(case.prompts))
        (folder / "reward.py").write_text(REWARD.replace("WHAT_GOES_WRONG", case.reward))
        config = text
        for old, new in case.changes.items():
            assert old in config
            config = config.replace(old, new)
        (folder / "grpo.toml").write_text(config)
        return Ended(retrograd("train", "grpo.toml", cwd=folder), folder)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(CASES, pool.map(run, CASES), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_a_failure_has_a_message_and_its_exit_status_and_leaves_no_process(ended, name):
    done, folder = ended[name].done, ended[name].folder
    assert done.returncode == CASES[name].status, done.stderr
    for words in CASES[name].said:
        assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "fault of retrograd" not in done.stderr
    assert "\x1b" not in done.stderr
    assert not (folder / "out/adapter.gguf").exists()
    if CASES[name].status == 2:
        assert not (folder / "pids").exists(), "refused before the reward program was started"
    else:
        assert [pid for pid in pids(folder) if runs(pid)] == []


def test_a_mistake_in_the_configuration_is_answered_before_anything_slow_is_loaded(ended):
    process = subprocess.Popen(
        [ended["misspelled key"].done.args[0], "train", "grpo.toml"],
        cwd=ended["misspelled key"].folder,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 2
    assert usage.ru_utime + usage.ru_stime < 1.5


def pids(folder: Path) -> list[int]:
    found = [int(pid) for pid in (folder / "pids").read_text().split()]
    assert len(found) == 2
    return found


def runs(pid: int) -> bool:
    # A process that ended and that nobody has waited for is no orphan any more.
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
