from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from app.cli.merge import check_target
from trainer.errors import ConfigError
from trainer.export import write
from trainer.gguf.architecture import describe
from trainer.gguf.file import GgufFile
from trainer.gguf.tensors import select_targets
from trainer.model.adapter import Adapter

SLOW = {"width": 512, "ff_width": 1024, "heads": 8, "kv_heads": 8, "head_size": 64, "layers": 6}
"""Of a size that the quantiser needs a while for."""


@pytest.fixture(scope="module")
def base(random_llama):
    return random_llama()


@pytest.fixture
def adapter(base, tmp_path):
    return adapter_of(base, tmp_path / "adapter.gguf")


def adapter_of(model, path, targets=("auto",)):
    decoder = describe(GgufFile(model))
    names = select_targets(decoder, targets)
    made = Adapter(decoder, names, rank=2, alpha=4.0, seed=0, device=torch.device("cpu"))
    write(path, made.random(0.1), dtype="f16")
    return path


def test_a_model_is_written_compared_and_told(retrograd, base, adapter, tmp_path):
    done = retrograd("merge", base, adapter, "--to", tmp_path / "out" / "m.gguf")
    assert done.returncode == 0, done.stderr
    rows = dict(re.split(r" {2,}", line, maxsplit=1) for line in done.stdout.splitlines())
    assert rows["model"].startswith(f"{tmp_path / 'out' / 'm.gguf'} (")
    assert rows["adapter"].strip() == f"{adapter}: 14 matrices"
    assert rows["type"].strip() == "f16"
    gap = re.match(
        r"log-probabilities differ by (\S+) nats from base and adapter", rows["compared"]
    )
    assert 0 < float(gap[1]) < 0.01
    assert set(GgufFile(tmp_path / "out" / "m.gguf").type_counts()) == {"F16", "F32"}
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["m.gguf"]
    seen = retrograd("inspect", tmp_path / "out" / "m.gguf")
    assert "can be trained on   yes" in seen.stdout


def test_a_merged_model_passes_check(retrograd, base, adapter, tmp_path, project, config_text):
    assert retrograd("merge", base, adapter, "--to", tmp_path / "m.gguf").returncode == 0
    done = retrograd("check", project(config_text), "--model", tmp_path / "m.gguf")
    assert "This run can start: 0 errors" in done.stdout, done.stdout


def test_types_in_any_letter_case_and_what_they_cannot_hold(retrograd, base, adapter, tmp_path):
    done = retrograd("merge", base, adapter, "--to", tmp_path / "m.gguf", "--type", "Q4_K_M")
    assert done.returncode == 0, done.stderr
    assert "Not every row fills whole blocks of q4_k_m" in done.stderr
    assert "with rows of 64 get q5_0 and not q4_K" in done.stderr
    assert "some hundredths are llama.cpp's 8-bit products" in done.stdout


def test_a_type_that_loses_what_was_learnt_is_told(retrograd, base, tmp_path):
    small = adapter_of(base, tmp_path / "adapter.gguf", targets=("blk.1.attn_q.weight",))
    done = retrograd("merge", base, small, "--to", tmp_path / "m.gguf", "--type", "q4_0")
    assert done.returncode == 0, done.stderr
    assert "q4_0 is too coarse. Use f16, or q8_0." in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{base}", "{adapter}", "--to", "{base}"], "itself, which is only read"),
        (["{base}", "{adapter}", "--to", "{there}"], "exists. Name another file with --to, or add"),
        (["{adapter}", "{base}", "--to", "new.gguf"], "this is an adapter, and the base model is"),
        (["{base}", "{base}", "--to", "new.gguf"], "this is a model, and an adapter is expected"),
        (["{base}", "absent", "--to", "new.gguf"], "absent: there is no such file"),
        (["{base}", "{adapter}", "--to", "new.gguf", "--type", "q9"], "there is no such type"),
        (["{tiny}", "{adapter}", "--to", "new.gguf"], "was made for"),
    ],
)
def test_what_is_refused_changes_nothing(
    retrograd, base, adapter, tiny, tmp_path, arguments, words
):
    (tmp_path / "there.gguf").write_bytes(b"earlier")
    before = {p.name: p.read_bytes() for p in (*tmp_path.iterdir(), base)}
    names = {"base": base, "adapter": adapter, "there": tmp_path / "there.gguf", "tiny": tiny}
    done = retrograd("merge", *(a.format(**names) for a in arguments), cwd=tmp_path)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.split())
    assert {p.name: p.read_bytes() for p in (*tmp_path.iterdir(), base)} == before


def test_force_replaces(retrograd, base, adapter, tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"earlier")
    done = retrograd("merge", base, adapter, "--to", tmp_path / "m.gguf", "--force", "--no-check")
    assert done.returncode == 0, done.stderr
    assert "compared" not in done.stdout
    assert GgufFile(tmp_path / "m.gguf").tensors


# -- the target ----------------------------------------------------------------------------------


def test_a_target_that_is_an_input_is_refused_by_whatever_name(base, adapter, tmp_path):
    base = Path(shutil.copy(base, tmp_path / "base.gguf"))
    (tmp_path / "link.gguf").symlink_to(base)
    os.link(base, tmp_path / "hard.gguf")
    (tmp_path / "folder").symlink_to(tmp_path)
    for name in ("base.gguf", "link.gguf", "hard.gguf", "folder/base.gguf", adapter.name):
        with pytest.raises(ConfigError, match="itself, which is only read"):
            check_target(tmp_path / name, base, adapter, force=True)


def test_an_existing_target_is_replaced_by_force_alone(tmp_path):
    target, base, adapter = (tmp_path / name for name in ("m.gguf", "base", "adapter"))
    check_target(target, base, adapter, force=False)
    target.write_bytes(b"earlier")
    with pytest.raises(ConfigError, match=r"m\.gguf: exists\. Name another file .* --force"):
        check_target(target, base, adapter, force=False)
    check_target(target, base, adapter, force=True)
    assert target.read_bytes() == b"earlier"


def test_a_target_that_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("", "this is a folder"), ("pipe", "a device or a pipe")):
        with pytest.raises(ConfigError, match=words):
            check_target(tmp_path / name, tmp_path / "base", tmp_path / "a", force=True)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match="cannot be made"):
        check_target(tmp_path / "file" / "m.gguf", tmp_path / "base", tmp_path / "a", force=True)


# -- an end before the end -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def slow(random_llama, tmp_path_factory):
    base = random_llama(**SLOW)
    return base, adapter_of(base, tmp_path_factory.mktemp("slow") / "adapter.gguf")


def until(holds, seconds=60.0):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to this"
        time.sleep(0.01)


def started(retrograd_path, slow, out):
    """The command at work, as soon as the quantiser has begun to write."""
    command = [retrograd_path, "merge", *slow, "--to", out / "m.gguf", "--type", "iq3_s"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    until(lambda: (out.is_dir() and len(list(out.iterdir())) == 2) or process.poll() is not None)
    assert process.poll() is None
    return process


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_it_and_leaves_nothing(retrograd_path, slow, tmp_path, number, status):
    out = tmp_path / "out"
    process = started(retrograd_path, slow, out)
    process.send_signal(number)
    _, words = process.communicate(timeout=60)
    assert process.returncode == status, words
    assert words.strip().splitlines()[-1].startswith("Stopped")
    assert list(out.iterdir()) == []


def test_after_a_kill_no_process_and_no_part_of_a_file_is_left(retrograd_path, slow, tmp_path):
    out = tmp_path / "out"
    process = started(retrograd_path, slow, out)
    (child,) = children(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    until(lambda: list(out.iterdir()) == [])
    until(lambda: gone(child))


def children(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(number) for number in (task / "children").read_text().split()]
    return found


def gone(pid):
    try:
        words = Path(f"/proc/{pid}/stat").read_text()
        return words.rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
