from __future__ import annotations

import math
import os

import pytest
from event_files import curve, read, texts

from trainer.monitor.eventfile import (
    PATTERN,
    EventFile,
    configuration,
    fenced,
    hyperparameters,
    samples,
    scalars,
    words,
)


def written(folder, *summaries, first=None):
    file = EventFile(folder, first=first)
    for step, summary in summaries:
        file.write(step, 1e9 + step, summary)
    file.close()
    return file.path


def test_scalars_are_read_back_with_step_and_time(tmp_path):
    written(tmp_path, (1, scalars({"reward/mean": 0.25})), (2, scalars({"reward/mean": 0.5})))
    assert curve(tmp_path, "reward/mean") == [(1, 0.25), (2, 0.5)]
    assert read(tmp_path).Scalars("reward/mean")[1].wall_time == 1e9 + 2


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, math.nan),
        (math.nan, math.nan),
        (math.inf, math.inf),
        (1e300, math.inf),
        (-0.0, 0.0),
        (3e-46, 0.0),
        (2**24, 2.0**24),
    ],
)
def test_any_number_can_be_written(tmp_path, value, shown):
    written(tmp_path, (1, scalars({"strange": value})))
    ((step, found),) = curve(tmp_path, "strange")
    assert step == 1
    assert found == shown or (math.isnan(found) and math.isnan(shown))


def test_names_and_texts_of_strangers_can_be_written(tmp_path):
    name = "reward/part/größe\ud800 =1+1"
    written(tmp_path, (1, scalars({name: 1.0})), (1, words("answers", "half \udfff\x00\x1b[2J")))
    assert curve(tmp_path, "reward/part/größe? =1+1") == [(1, 1.0)]
    assert texts(tmp_path, "answers") == {1: "half ?\x00\x1b[2J"}


def test_a_file_that_takes_over_hides_the_steps_from_there_on(tmp_path):
    written(tmp_path, *((step, scalars({"a": step})) for step in range(1, 6)))
    written(tmp_path, (4, scalars({"a": 40})), (5, scalars({"a": 50})), first=4)
    assert curve(tmp_path, "a") == [(1, 1), (2, 2), (3, 3), (4, 40), (5, 50)]


def test_each_file_sorts_behind_those_that_are_there_whatever_the_clock_says(tmp_path):
    (tmp_path / "events.out.tfevents.9000000000.elsewhere").touch()
    (tmp_path / "notes.txt").touch()
    made = [EventFile(tmp_path) for _ in range(3)]
    for file in made:
        file.close()
    names = [file.path.name for file in made]
    assert names == sorted(names)
    assert names[0] == "events.out.tfevents.9000000001.retrograd"
    assert len(list(tmp_path.glob(PATTERN))) == 4


def test_a_file_cut_in_the_middle_of_a_record_loses_that_record_alone(tmp_path):
    path = written(tmp_path, *((step, scalars({"a": step})) for step in range(1, 4)))
    os.truncate(path, path.stat().st_size - 5)
    written(tmp_path, (3, scalars({"a": 33})), first=3)
    assert curve(tmp_path, "a") == [(1, 1), (2, 2), (3, 33)]


def test_the_configuration_is_a_text_and_what_tensorboard_compares_runs_by(tmp_path):
    params = {
        "training": {"lr": 1e-4, "device": None},
        "lora": {"targets": ["q", "v"], "rank": 8},
        "run": {"name": "addition", "verbose": False},
    }
    told = configuration("base.gguf", {"machine": "cpu"}, params)
    begin, start, end = hyperparameters(params, ["reward/mean"])
    written(tmp_path, (0, told), (0, begin), (0, start), (9, end))
    assert '"lr": 0.0001' in texts(tmp_path, "config")[0]
    assert '"machine": "cpu"' in texts(tmp_path, "config")[0]
    found = read(tmp_path)
    contents = found.PluginTagToContent("hparams")
    assert sorted(contents) == [
        "_hparams_/experiment",
        "_hparams_/session_end_info",
        "_hparams_/session_start_info",
    ]
    started = contents["_hparams_/session_start_info"]
    for key in (b"training.lr", b"lora.rank", b"lora.targets", b'["q", "v"]', b"run.verbose"):
        assert key in started
    assert b"training.device" not in started, "it is unset"
    assert b"reward/mean" in contents["_hparams_/experiment"]


def test_the_best_and_the_worst_answer_are_shown_as_they_are(tmp_path):
    answers = [("2 + 3?", "4", 0.0), ("2 + 3?", "```\n<b>5</b>", 1.0), ("2 + 3?", "6", 0.5)]
    written(tmp_path, (7, samples("answers", answers)))
    assert texts(tmp_path, "answers")[7] == (
        "**best answer**, reward 1\n\n````\n```\n<b>5</b>\n````\n\nto\n\n```\n2 + 3?\n```\n\n"
        "**worst answer**, reward 0\n\n```\n4\n```\n\nto\n\n```\n2 + 3?\n```"
    )


def test_answers_that_are_alike_are_shown_once_and_long_ones_are_cut(tmp_path):
    answers = [("p" * 9, "a" * 9, 0.5), ("p", "b", 0.5)]
    written(tmp_path, (1, samples("answers", answers, 4)), (2, samples("answers", answers[:1], 4)))
    found = texts(tmp_path, "answers")
    assert "aaaa…" in found[1]
    assert "worst" not in found[1]
    assert found[2].startswith("**only answer**")


def test_a_file_that_cannot_be_written_to_its_end_is_closed_all_the_same(tmp_path, monkeypatch):
    file = EventFile(tmp_path)

    def full():
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file._records, "flush", full)
    with pytest.raises(OSError, match="No space"):
        file.close()
    assert file._records._writer.closed


def test_a_file_that_cannot_be_begun_is_not_left(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(EventFile, "flush", full)
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            EventFile(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "```", "``` ````` `", "a\nb"])
def test_no_text_ends_its_fence(text):
    fence, *inside, last = fenced(text).split("\n")
    assert "\n".join(inside) == text
    assert fence == last
    assert fence not in text
