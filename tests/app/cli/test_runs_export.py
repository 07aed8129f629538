from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import threading
from contextlib import closing
from pathlib import Path

import pytest
from event_files import curve
from told_runs import whole_run

from app.store.database import Store


@pytest.fixture
def url(tmp_path):
    url = str(tmp_path / "store.db")
    with closing(Store.open(url)) as store:
        whole_run(store, tmp_path, 5)
    return url


@pytest.fixture
def export(retrograd, url):
    """The installed command, of the first run."""

    def call(*arguments):
        return retrograd("runs", "export", "1", *arguments, "--store", url)

    return call


def test_metrics_are_a_table_with_a_row_for_each_update(export):
    table = list(csv.DictReader(io.StringIO(export().stdout)))
    assert [row["reward/mean"] for row in table] == ["0.01", "0.02", "0.03", "0.04", "0.05"]
    assert [row["update"] for row in table] == ["1", "2", "3", "4", "5"]


def test_answers_and_records_are_lines(export, tmp_path):
    answers = export("--what", "answers", "--format", "jsonl").stdout.splitlines()
    assert len(answers) == 40
    assert json.loads(answers[0])["completion"].startswith("answer 1 0 0")
    path = tmp_path / "records.jsonl"
    done = export("--what", "records", "--to", path)
    assert (done.returncode, done.stdout) == (0, "")
    kinds = [json.loads(line)["type"] for line in path.read_text().splitlines()]
    assert (kinds.count("rollout"), kinds.count("update"), kinds[0]) == (40, 5, "run")


def test_a_file_that_happens_to_be_named_like_a_part_stays(export, tmp_path):
    (tmp_path / "m.csv.part").write_text("somebody's")
    assert export("--to", tmp_path / "m.csv").returncode == 0
    assert (tmp_path / "m.csv.part").read_text() == "somebody's"
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file() and "m.csv" in p.name) == [
        "m.csv", "m.csv.part"
    ]  # fmt: skip


def test_tensorboard_reads_a_stored_run(export, tmp_path):
    done = export("--format", "tensorboard", "--to", tmp_path / "board")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "board/run-1-addition"
    assert f"TensorBoard reads the run in {folder}." in done.stderr
    assert [step for step, _ in curve(folder, "reward/mean")] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--what", "records", "--format", "csv"], 2, "records cannot be written as csv"),
        (["--format", "tensorboard"], 2, "Name a folder for the event file with --to"),
        (
            ["--format", "tensorboard", "--what", "answers", "--to", "x"],
            2,
            "leave out --what answers",
        ),
        (["--to", "no/such.csv"], 1, "no/such.csv: cannot be written (No such file or directory)"),
        (["--format", "xlsx"], 2, "xlsx"),
    ],
)
def test_what_cannot_be_written_is_said(export, arguments, status, words):
    done = export(*arguments)
    assert done.returncode == status
    assert words in " ".join(done.stderr.split())
    assert done.stdout == ""


def test_a_file_that_is_there_is_replaced_only_when_told_to(export, tmp_path):
    (tmp_path / "mine.toml").write_text("[run]")
    done = export("--to", tmp_path / "mine.toml")
    assert done.returncode == 2
    assert f"--to {tmp_path / 'mine.toml'}: exists. Name another file, or add" in done.stderr
    assert (tmp_path / "mine.toml").read_text() == "[run]"
    assert export("--to", tmp_path / "mine.toml", "--force").returncode == 0
    assert (tmp_path / "mine.toml").read_text().startswith("kind,")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["export", "1"], "The standard output cannot be written (No space left on device)."),
        (["show", "1"], "What it prints could not be written (No space left on device)."),
    ],
)
def test_a_full_disk_behind_the_standard_output_is_named(retrograd_path, url, command, words):
    with Path("/dev/full").open("w") as full:
        whole = [retrograd_path, "runs", *command, "--store", url]
        done = subprocess.run(whole, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert words in done.stderr


def test_a_run_that_is_not_there_is_named_and_leaves_no_file(retrograd, url, tmp_path):
    done = retrograd("runs", "export", "9", "--to", tmp_path / "a.csv", "--store", url)
    assert done.returncode == 2
    assert "There is no run 9 in" in done.stderr
    assert not (tmp_path / "a.csv").exists()


def test_a_pipe_is_written_to_as_it_is(export, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    assert export("--what", "events", "--to", tmp_path / "pipe").returncode == 0
    reader.join(10)
    assert read[0].startswith("time,level,code")
