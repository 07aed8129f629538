"""Drafts that several people, and servers, change and start at the same moment."""

from __future__ import annotations

import io
import os
import threading
import time

import pytest
from desk import Desk, config_text, prepare_workspace, upload
from pydantic import SecretStr

from app.jobs.accepted import accept
from app.jobs.checks import read_checks, start_checks
from app.jobs.configs import config_of
from app.jobs.lock import locked
from app.jobs.queue import QueueError
from app.jobs.runs import Jobs
from app.jobs.uploads import Upload

ALLOWED = '["python3", "smoke_rl_reward.py"]'
NOT_ALLOWED = '["sh", "-c", "id"]'


@pytest.fixture
def desk(tmp_path):
    """A server with a token, where uploads may run the workspace's Python programs."""
    desk = Desk.open(
        tmp_path,
        prepare_workspace(tmp_path / "workspace"),
        token=SecretStr("secret"),
        allow_command=("python3",),
    )
    yield desk
    desk.close()


class Slow(io.BytesIO):
    """A file during whose arrival something else is asked for."""

    def __init__(self, meanwhile) -> None:
        super().__init__(b"x")
        self.meanwhile = threading.Thread(target=meanwhile)
        self.begun = False

    def read(self, size: int = -1) -> bytes:
        if not self.begun:
            self.begun = True
            self.meanwhile.start()
            self.meanwhile.join(0.3)
        return super().read(size)


def attempt(told, act, *arguments):
    def made():
        try:
            act(*arguments)
        except QueueError as error:
            told.append(str(error))

    return made


def test_what_is_saved_while_it_is_started_is_judged_as_well(desk):
    """By another server on the same store."""
    other = Jobs(desk.jobs.store, desk.jobs.settings)
    draft, told = desk.jobs.create(config_text(2, reward_command=ALLOWED)), []
    file = Slow(attempt(told, other.start, draft))
    text = config_text(2, reward_command=NOT_ALLOWED)
    desk.jobs.save(draft, text, [Upload("large.txt", file)])
    file.meanwhile.join()
    assert told == ["This run was not started. The configuration has to be mended first."]
    assert desk.run(draft).status == "draft"


def test_a_draft_that_is_saved_is_not_discarded_meanwhile(desk):
    draft, told = desk.jobs.create(config_text(2)), []
    file = Slow(attempt(told, desk.jobs.discard, draft))
    desk.jobs.save(draft, config_text(3), [Upload("large.txt", file)])
    file.meanwhile.join()
    assert told == []
    with pytest.raises(QueueError, match="There is no draft"):
        desk.jobs.save(draft, config_text(4))
    assert not (desk.jobs.data_folder / "runs" / str(draft)).exists()


def test_what_has_started_is_changed_no_more(desk):
    run = desk.enter(config_text(2))
    for act in (
        lambda: desk.jobs.save(run, config_text(3)),
        lambda: desk.jobs.remove_upload(run, "x"),
        lambda: desk.jobs.discard(run),
        lambda: desk.jobs.begin_checks(run),
    ):
        with pytest.raises(QueueError, match="the run has started"):
            act()


def test_a_run_whose_text_is_not_the_accepted_one_ends_before_it_is_loaded(desk):
    run = desk.enter(config_text(2, reward_command=ALLOWED))
    config_of(desk.run(run))
    text = config_text(2, reward_command=NOT_ALLOWED)
    (desk.jobs.data_folder / "runs" / str(run) / "run.toml").write_text(text)
    ended = desk.wait_until(run, "failed")
    assert "run.toml is not what was accepted for this run" in ended.message


def test_checks_that_find_another_text_run_nothing(desk, tmp_path):
    draft = desk.jobs.create(config_text(2))
    seen = tmp_path / "seen"
    text = config_text(2, reward_command=f'["touch", "{seen}"]')
    folder = desk.jobs.data_folder / "runs" / str(draft)
    accept(folder, desk.jobs.trust)
    (folder / "run.toml").write_text(text)
    with locked(folder):
        start_checks(folder)
    desk.wait(lambda: read_checks(folder).state == "done")
    assert "not what was accepted" in read_checks(folder).findings[0].detail
    assert not seen.exists()


def test_nothing_is_kept_of_a_draft_with_a_file_that_is_not_taken(desk):
    with pytest.raises(Exception, match="takes data"):
        desk.jobs.create(config_text(2), [upload("json.py", "")])
    assert list((desk.jobs.data_folder / "runs").iterdir()) == []


def test_checks_that_begin_anew_are_not_ended_with_those_before(desk):
    draft = desk.jobs.create(config_text(2))
    folder = desk.jobs.place_of(draft)
    for _ in range(3):
        desk.jobs.begin_checks(draft)
    desk.wait(lambda: read_checks(folder).state != "running")
    assert (read_checks(folder).state, read_checks(folder).message) == ("done", "")


def test_drafts_that_nobody_touches_for_a_month_go(desk):
    old, touched, started = (desk.jobs.create(config_text(2)) for _ in range(3))
    desk.jobs.start(started)
    month = time.time() + 31 * 86400
    file = desk.jobs.place_of(touched) / "run.toml"
    os.utime(file, (month, month))
    assert desk.jobs.discard_old_drafts(time.time() + 29 * 86400) == []
    assert desk.jobs.discard_old_drafts(month) == [old]
    assert not desk.jobs.place_of(old).exists()
    assert desk.jobs.draft(touched).status == "draft"
