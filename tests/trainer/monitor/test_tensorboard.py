from __future__ import annotations

import dataclasses
import errno
import json

import pytest
from event_files import curve, read, texts

from trainer.errors import ConfigError
from trainer.monitor import CompositeMonitor, Outcome
from trainer.monitor.eventfile import PATTERN, EventFile
from trainer.monitor.tensorboard import TensorBoardMonitor, folder_name

DONE = Outcome(status="completed", updates=3, output=None, message="")
STOPPED = dataclasses.replace(DONE, status="stopped")


def run(directory, info, updates, *, at=0.0, end=DONE, tell=lambda _: None):
    """A run of some updates, in its folder."""
    monitor = TensorBoardMonitor(directory, tell)
    monitor.run_started(info)
    for update in updates:
        monitor.metrics(update, "trained", {"reward/mean": at + update, "timing/a": 1.0})
    if end is None:
        kill(monitor)
    else:
        monitor.run_finished(end)
    return monitor.folder


def kill(monitor):
    """What is on the disk stays, and nobody says how the run ended."""
    monitor._file.abandon()


def resumed(info, update):
    return dataclasses.replace(info, resumed_from_update=update)


def test_updates_and_evaluations_are_curves_over_the_updates(tmp_path, info):
    monitor = TensorBoardMonitor(tmp_path)
    monitor.run_started(info)
    monitor.evaluation(0, (), {"eval/mean_reward": 0.125, "timing/update_seconds": 9.0})
    monitor.metrics(1, "trained", {"reward/mean": 0.5, "timing/update_seconds": 2.0})
    monitor.metrics(2, "skipped", {"reward/mean": float("nan")})
    monitor.evaluation(2, (), {"eval/mean_reward": 0.25, "timing/update_seconds": 9.0})
    monitor.run_finished(DONE)
    folder = tmp_path / "addition"
    assert curve(folder, "eval/mean_reward") == [(0, 0.125), (2, 0.25)]
    assert curve(folder, "timing/update_seconds") == [(1, 2.0)]
    assert [step for step, _ in curve(folder, "reward/mean")] == [1, 2]
    assert '"lr": 0.0001' in texts(folder, "config")[0]
    assert "_hparams_/session_end_info" in read(folder).PluginTagToContent("hparams")


def test_the_best_and_the_worst_answer_are_kept_some_ten_times(tmp_path, info, group, trajectory):
    monitor = TensorBoardMonitor(tmp_path)
    monitor.run_started(dataclasses.replace(info, updates=40))
    for update in range(1, 41):
        good, bad = (trajectory(f"{word} {update}", r) for word, r in (("good", 1.0), ("bad", 0.0)))
        monitor.trajectories(update, [group(good, bad)])
        if update != 5:
            monitor.metrics(update, "trained", {})
    monitor.evaluation(40, [group(trajectory("held out"))], {"eval/mean_reward": 1.0})
    monitor.run_finished(DONE)
    found = texts(tmp_path / "addition", "answers")
    assert list(found) == [1, 6, 10, 14, 18, 22, 26, 30, 34, 38], "update 5 did not end"
    assert "good 6" in found[6]
    assert "bad 6" in found[6]
    assert "held out" in texts(tmp_path / "addition", "eval/answers")[40]


def test_texts_that_are_not_to_be_kept_are_not_kept_here_either(tmp_path, info, group, trajectory):
    params = dict(info.params) | {"observe": {"every": 2, "max_text_chars": 3}}
    monitor = TensorBoardMonitor(tmp_path)
    monitor.run_started(dataclasses.replace(info, params=params))
    for update in (1, 2, 3):
        monitor.trajectories(update, [group(trajectory("abcdef"))])
        monitor.metrics(update, "trained", {})
    monitor.run_finished(DONE)
    found = texts(tmp_path / "addition", "answers")
    assert list(found) == [1, 3]
    assert "abc…" in found[1]


def test_a_run_that_goes_on_has_no_point_twice(tmp_path, info):
    first = run(tmp_path, info, range(1, 6), end=None)
    second = run(tmp_path, resumed(info, 3), range(4, 8), at=100)
    assert second == first
    assert [p.name for p in tmp_path.iterdir()] == ["addition"]
    assert curve(first, "reward/mean") == [
        (1, 1), (2, 2), (3, 3), (4, 104), (5, 105), (6, 106), (7, 107)
    ]  # fmt: skip
    assert list(texts(first, "config")) == [0, 3], "it may have been changed since"


def test_a_run_that_goes_on_twice_from_the_same_place(tmp_path, info):
    folder = run(tmp_path, info, range(1, 4), end=STOPPED)
    run(tmp_path, resumed(info, 2), range(3, 6), at=10, end=None)
    run(tmp_path, resumed(info, 2), range(3, 5), at=20)
    assert curve(folder, "reward/mean") == [(1, 1), (2, 2), (3, 23), (4, 24)]


def test_runs_that_share_a_directory_have_folders_of_their_own(tmp_path, info):
    said: list[str] = []
    run(tmp_path, info, [1], tell=said.append)
    other = dataclasses.replace(info, output="other.gguf")
    run(tmp_path, other, [1], at=10, tell=said.append)
    assert said == [
        f"TensorBoard reads this run in {tmp_path}/addition.",
        f"TensorBoard reads this run in {tmp_path}/addition-2: addition beside it is another "
        "run's.",
    ]
    run(tmp_path, resumed(other, 1), [2], at=10, tell=said.append)
    assert said[2].endswith("/addition-2, where it goes on after update 1.")
    assert curve(tmp_path / "addition", "reward/mean") == [(1, 1)]
    assert curve(tmp_path / "addition-2", "reward/mean") == [(1, 11), (2, 12)]


def test_the_same_run_begun_again_goes_on_where_it_was_made_last(tmp_path, info):
    run(tmp_path, info, [1, 2])
    second = run(tmp_path, info, [1], at=10, end=STOPPED)
    run(tmp_path, resumed(info, 1), [2], at=10)
    assert second == tmp_path / "addition-2"
    assert curve(second, "reward/mean") == [(1, 11), (2, 12)]


def test_a_run_that_goes_on_without_a_folder_gets_one(tmp_path, info):
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange/run.json").write_text("[not ours")
    folder = run(tmp_path, resumed(info, 4), [5])
    assert curve(folder, "reward/mean") == [(5, 5)]


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("addition", "addition"),
        ("Größe 2,5", "Größe_2_5"),
        ("../../etc/passwd", "etc_passwd"),
        ("..", "run"),
        ("/", "run"),
        (".hidden", "hidden"),
        ("x" * 200, "x" * 80),
    ],
)
def test_a_name_becomes_a_folder_inside_the_directory(name, folder):
    assert folder_name(name) == folder


def test_a_directory_that_cannot_be_written_ends_the_run_before_it_begins(tmp_path, info):
    (tmp_path / "board").write_text("a file")
    monitor = CompositeMonitor([TensorBoardMonitor(tmp_path / "board")])
    with pytest.raises(ConfigError, match=r"board cannot be written.*tensorboard_dir"):
        monitor.run_started(info)


def test_a_link_to_nowhere_ends_the_run_before_it_begins(tmp_path, info):
    (tmp_path / "board").symlink_to(tmp_path / "no" / "such")
    with pytest.raises(ConfigError, match="cannot be written for TensorBoard"):
        TensorBoardMonitor(tmp_path / "board").run_started(info)


def test_what_cannot_be_written_later_is_lost_and_nothing_else(tmp_path, info, monkeypatch):
    monitor = TensorBoardMonitor(tmp_path)
    every = CompositeMonitor([monitor])
    every.run_started(info)
    every.metrics(1, "trained", {"a": 1.0})
    full = OSError(errno.ENOSPC, "No space left on device")

    def no_room(self, step, at, summary):
        self._records._writer.write(b"half a record")
        raise full

    with monkeypatch.context() as disk:
        disk.setattr(EventFile, "write", no_room)
        every.metrics(2, "trained", {"a": 2.0})
    every.metrics(3, "trained", {"a": 3.0})
    every.run_finished(DONE)
    assert every.losses == {"TensorBoardMonitor": 1}
    assert curve(tmp_path / "addition", "a") == [(1, 1.0), (3, 3.0)]
    assert len(list((tmp_path / "addition").glob(PATTERN))) == 2


def test_an_update_is_in_the_file_when_it_ends(tmp_path, info):
    monitor = TensorBoardMonitor(tmp_path)
    monitor.run_started(info)
    monitor.metrics(1, "trained", {"a": 1.0})
    assert curve(tmp_path / "addition", "a") == [(1, 1.0)]
    monitor.run_finished(DONE)


def test_the_folder_says_whose_it_is(tmp_path, info):
    folder = run(tmp_path, info, [1])
    told = json.loads((folder / "run.json").read_text())
    assert told == {"name": "addition", "output": "adapter.gguf", "run_id": info.run_id}


def test_of_runs_with_one_output_each_goes_on_in_its_own_folder(tmp_path, info):
    one, other = (dataclasses.replace(info, run_id=name) for name in ("one", "other"))
    first = run(tmp_path, one, [1, 2, 3], end=None)
    second = run(tmp_path, other, [1, 2, 3], at=10)
    assert run(tmp_path, resumed(one, 2), [3], at=100) == first
    assert run(tmp_path, resumed(other, 1), [2], at=200) == second
    assert curve(first, "reward/mean") == [(1, 1), (2, 2), (3, 103)]
    assert curve(second, "reward/mean") == [(1, 11), (2, 202)]
    third = dataclasses.replace(info, run_id="third")
    assert run(tmp_path, resumed(third, 2), [3]) not in (first, second), "it had none here"


def test_a_folder_without_an_id_is_found_by_its_output_and_then_has_one(tmp_path, info):
    folder = run(tmp_path, dataclasses.replace(info, run_id=""), [1, 2])
    old = {"name": info.name, "output": info.output}
    (folder / "run.json").write_text(json.dumps(old))
    mine = dataclasses.replace(info, run_id="mine")
    assert run(tmp_path, resumed(mine, 1), [2], at=10) == folder
    assert json.loads((folder / "run.json").read_text())["run_id"] == "mine"
    other = dataclasses.replace(info, run_id="other")
    assert run(tmp_path, resumed(other, 1), [2], at=20) != folder
