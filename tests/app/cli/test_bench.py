"""`retrograd bench` as a person types it, on the bundled tiny model."""

from __future__ import annotations

import json
import os
import pty
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from left_over import left, nothing_left

from app.cli.bench import bench
from trainer.gguf.file import GgufFile

ADDS = """\
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "completion" in message:
        text, right = message["completion"], str(message["metadata"]["answer"])
        echoed = {key: value for key, value in message.items() if key.startswith("_retrograd_")}
        reward = 1.0 if text == right else 0.5 if right in text else 0.0
        message = {"reward": reward, "parts": {"right": float(right in text)}, **echoed}
    WHAT_ELSE
    print(json.dumps(message), flush=True)
"""

nothing_is_left_running = pytest.fixture(autouse=True)(nothing_left)


def sums(place):
    """The sums of one-digit numbers, dealt to two files that have none in common."""
    pairs = [(a, b) for a in range(1, 10) for b in range(1, 10)]
    random.Random(1).shuffle(pairs)
    return "".join(
        json.dumps(
            {"messages": [{"role": "user", "content": f"What is {a} + {b}?"}], "answer": a + b}
        )
        + "\n"
        for a, b in pairs[place::2]
    )


@pytest.fixture(scope="module")
def trained(retrograd, root, tiny, tmp_path_factory):
    """The folder of a short run of the tiny model that has learnt to give the bare sum."""
    folder = tmp_path_factory.mktemp("bench")
    text = (root / "examples" / "smoke_tiny_grpo.toml").read_text(encoding="utf-8")
    for old, new in {
        "tiny/tiny.gguf": str(tiny),
        "tiny/prompts.jsonl": "prompts.jsonl",
        "smoke_rl_reward.py": "reward.py",
        "../runs/smoke_tiny_grpo/": "",
        "../runs/smoke_tiny_grpo": ".",
        "updates = 60": "updates = 25",
        "lr = 0.0008": "lr = 0.0016\nthreads = 1",
    }.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "run.toml").write_text(text, encoding="utf-8")
    (folder / "prompts.jsonl").write_text(sums(0), encoding="utf-8")
    (folder / "held_out.jsonl").write_text(sums(1), encoding="utf-8")
    (folder / "reward.py").write_text(ADDS.replace("WHAT_ELSE", "pass"), encoding="utf-8")
    done = retrograd("train", "run.toml", "--store", "none", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_what_was_learnt_is_found_on_prompts_that_were_not_trained_on(retrograd, trained):
    done = retrograd(
        "bench", "run.toml", "--data", "held_out.jsonl", "--save", "a.json", cwd=trained
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        "base: tiny.gguf, 160 answers",
        "adapter: adapter.gguf, 160 answers",
    ]
    assert "prompts   40 of held_out.jsonl, 4 answers to each" in done.stdout
    assert "The adapter is better: the interval leaves zero out." in done.stdout
    assert "Gained most" in done.stdout
    assert "note" not in done.stdout, "there are enough of them, and none was trained on"
    record = json.loads((trained / "a.json").read_text(encoding="utf-8"))
    reward = record["figures"]["reward"]
    assert reward["low"] > 0.05
    assert reward["low"] < reward["difference"] < reward["high"]
    assert reward["better"] > 3 * reward["worse"]


def test_the_record_holds_every_answer_and_what_the_figures_follow_from(retrograd, trained):
    arguments = (
        "bench",
        "run.toml",
        "--data",
        "held_out.jsonl",
        "--limit",
        "5",
        "--samples",
        "2",
        "--json",
    )
    done, again = (retrograd(*arguments, cwd=trained) for _ in range(2))
    assert done.returncode == 0, done.stderr
    assert done.stdout == again.stdout, "the same command gives the same record"
    record = json.loads(done.stdout)
    assert record["format"] == "retrograd-bench/1"
    judged = [name for name, figure in record["figures"].items() if "better" in figure]
    assert judged == [name for name in ("reward", "best") if name in record["figures"]]
    assert {"tokens", "truncated"} < record["figures"].keys()
    assert not {"worse", "sign_p"} & record["figures"]["tokens"].keys()
    assert record["policies"]["base"]["model"]["sha256"].startswith("ccb01865")
    assert set(record["policies"]["adapter"]) == {"model", "adapter"}
    assert record["sampling"] == {
        "temperature": 1.0, "top_p": 1.0, "max_new_tokens": 16,
        "greedy": False, "samples": 2, "seed": 42,
    }  # fmt: skip
    assert str(trained) not in done.stdout, "a record that is published names no folder"
    assert [q["line"] for q in record["questions"]] == [1, 9, 17, 25, 33]
    for side in ("base", "adapter"):
        answers = [q["answers"][side] for q in record["questions"]]
        rewards = [a["reward"] for own in answers for a in own]
        mean = record["figures"]["reward"]["before" if side == "base" else "after"]
        assert sum(rewards) / 10 == pytest.approx(mean)
        assert {frozenset(a) for own in answers for a in own} == {
            frozenset(("completion", "reward", "parts", "tokens", "truncated"))
        }


def test_the_record_is_made_once_and_each_file_read_once_for_it(trained, monkeypatch, capsys):
    digests = []

    class Counted(GgufFile):
        def digest(self):
            digests.append(self.path.name)
            return super().digest()

    monkeypatch.setattr("app.cli.bench_record.GgufFile", Counted)
    monkeypatch.chdir(trained)
    bench(Path("run.toml"), limit=2, samples=1, as_json=True, save=Path("b.json"))
    assert capsys.readouterr().out == (trained / "b.json").read_text(encoding="utf-8")
    assert sorted(digests) == ["adapter.gguf", "tiny.gguf"]


@pytest.mark.parametrize("width", [80, 120])
def test_on_a_terminal_no_line_is_wider_than_it_is(retrograd_path, trained, width):
    shown = in_terminal([retrograd_path, "bench", "run.toml", "--limit", "8"], trained, width)
    assert "Gained most" in shown
    lines = shown.split("Gained most")[1].splitlines()
    assert all(len(line.rstrip()) <= width for line in lines)
    assert "95% interval" in shown
    assert "+0." in shown


def in_terminal(command, folder, width):
    """What a command writes to stdout, where that is a terminal of so many columns."""
    master, slave = pty.openpty()
    env = os.environ | {"COLUMNS": str(width), "LINES": "50", "TERM": "xterm", "NO_COLOR": "1"}
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=slave, stderr=subprocess.PIPE)
    os.close(slave)
    written = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the last one has closed it
            break
        written += part
        if not part:
            break
    os.close(master)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return written.decode()


def test_what_a_model_wrote_cannot_move_the_cursor(retrograd, trained, tmp_path):
    line = {"messages": [{"role": "user", "content": "What is 3 + 5?\x1b[2J"}], "answer": 8}
    data = tmp_path / "odd.jsonl"
    data.write_text("\n".join(json.dumps(line | {"n": n}) for n in range(4)), encoding="utf-8")
    done = retrograd("bench", "run.toml", "--data", data, "--show", "4", cwd=trained)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout


MISTAKES = {
    "no adapter": (["--adapter", "gone.gguf"], "--adapter: gone.gguf: there is no such file"),
    "no data": (["--data", "gone.jsonl"], "--data: gone.jsonl: there is no such file"),
    "no baseline": (
        ["--baseline", "gone.gguf"],
        "leave --baseline out to compare with the base alone",
    ),
    "two of a kind": (["--greedy", "--samples", "2"], "--samples 2 beside --greedy: a prompt"),
    "heat": (["--greedy", "--temperature", "2"], "--temperature 2 beside --greedy, which"),
    "a file that is there": (["--save", "run.toml"], "--save run.toml: exists. Name another file"),
    "no folder": (["--save", "gone/a.json"], "--save: gone/a.json: name a file in a folder"),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.full) if name in ("no baseline", "heat") else name
        for name in MISTAKES
    ],
)
def test_mistakes_are_told_in_a_paragraph_with_status_2(retrograd, trained, name):
    arguments, words = MISTAKES[name]
    done = retrograd("bench", "run.toml", *arguments, cwd=trained)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def spoiled(trained, tmp_path):
    """The trained run in a folder of its own, whose reward program does something else as well."""

    def spoil(what):
        for path in trained.iterdir():
            (tmp_path / path.name).symlink_to(path)
        (tmp_path / "reward.py").unlink()
        (tmp_path / "reward.py").write_text(ADDS.replace("WHAT_ELSE", what), encoding="utf-8")
        return tmp_path

    return spoil


def test_a_reward_program_that_dies_is_status_1(retrograd, spoiled):
    folder = spoiled("if 'reward' in message: sys.exit('out of luck')")
    done = retrograd("bench", "run.toml", "--limit", "2", cwd=folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert "out of luck" in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_is_status_130_and_ends_the_reward_program(retrograd_path, spoiled):
    folder = spoiled(
        "if 'reward' in message: open('waiting', 'w').close(); __import__('time').sleep(600)"
    )
    process = subprocess.Popen(
        [retrograd_path, "bench", "run.toml", "--limit", "2"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until = time.monotonic() + 120
    while not (folder / "waiting").exists():
        assert time.monotonic() < until
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    assert len(left()) >= 2
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Stopped." in errors
    assert "Traceback" not in errors


def test_a_mistake_in_the_configuration_is_told_before_torch_is_loaded(tmp_path):
    (tmp_path / "run.toml").write_text("[run]\nalgorithm = 'grop'\n", encoding="utf-8")
    code = (
        "import sys; from importlib import import_module\n"
        "try: import_module('app.cli.main').app(['bench', 'run.toml'])\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout == "2 False\n", done.stderr
