"""The buttons that act on a run, with runs as the store has them in each state."""

from __future__ import annotations

import errno
import os

import pytest
from desk import Desk, config_text, prepare_workspace
from fastapi.testclient import TestClient
from sqlalchemy import select
from web import page_headers

from app.jobs.queue import QueueError, ahead, ask
from app.server.app import create_app
from app.store.models import Request, Run

BUTTONS = (
    "Leave the queue",
    "Checkpoint now",
    "Evaluate now",
    "Stop",
    "Stop now",
    "Resume",
    "Start again",
)


@pytest.fixture
def desk(tmp_path):
    desk = Desk.open(tmp_path, prepare_workspace(tmp_path / "workspace"))
    yield desk
    with desk.jobs.store.write() as session:
        for run in session.scalars(select(Run)):
            run.status = "stopped"
    desk.close()


@pytest.fixture
def press(desk):
    """Presses a button; where it led, or what was said against it."""
    app = create_app(desk.jobs.settings, desk.jobs.store)
    client = TestClient(app, base_url="http://127.0.0.1", follow_redirects=False)
    headers = page_headers(client, "/runs/new")

    def act(run_id, kind):
        answer = client.post(f"/runs/{run_id}/{kind}", headers=headers)
        return answer.headers.get("location") or (answer.status_code, answer.json()["detail"])

    act.client, act.headers = client, headers
    return act


@pytest.fixture
def queued(desk):
    return desk.enter(config_text(2))


def become(desk, run_id, status):
    with desk.jobs.store.write() as session:
        session.get(Run, run_id).status = status


def ended(desk, run_id, **columns):
    """It was interrupted, with what ``columns`` say."""
    output = desk.jobs.place_of(run_id) / "output" / "run.gguf"
    with desk.jobs.store.write() as session:
        run = session.get(Run, run_id)
        for column, value in {"status": "interrupted", "output": str(output), **columns}.items():
            setattr(run, column, value)


def requests(desk, run_id):
    with desk.jobs.store.read() as session:
        return session.scalars(select(Request.kind).where(Request.run_id == run_id)).all()


def test_a_queued_run_that_is_stopped_leaves_the_queue(desk, press, queued):
    assert press(queued, "stop") == f"/runs/{queued}"
    run = desk.run(queued)
    assert (run.status, run.message) == ("stopped", "Taken out of the queue before it began.")
    assert requests(desk, queued) == []
    desk.supervisor.turn()
    assert desk.run(queued).status == "stopped"


def test_a_running_run_is_asked(desk, press, queued):
    become(desk, queued, "running")
    for kind in ("checkpoint", "evaluate"):
        assert press(queued, kind) == f"/runs/{queued}?asked={kind}"
    assert press(queued, "stop") == f"/runs/{queued}"
    assert requests(desk, queued) == ["checkpoint", "evaluate", "stop"]
    assert desk.run(queued).status == "stopping"


def test_a_run_that_is_stopping_promises_nothing_more(desk, press, queued):
    become(desk, queued, "stopping")
    for kind in ("checkpoint", "evaluate"):
        status, words = press(queued, kind)
        assert (status, "is stopping" in words) == (409, True)
    assert press(queued, "stop") == f"/runs/{queued}"


@pytest.mark.parametrize("kind", ["stop", "checkpoint", "evaluate", "resume"])
def test_a_completed_run_has_nothing_to_be_asked(desk, press, queued, kind):
    become(desk, queued, "completed")
    status, words = press(queued, kind)
    assert status == 409
    assert "because it is completed" in words
    assert requests(desk, queued) == []


@pytest.mark.parametrize("status", ["stopped", "failed", "interrupted"])
def test_what_ended_early_is_queued_again(desk, press, queued, status):
    become(desk, queued, status)
    before = desk.run(queued).pulse
    assert press(queued, "resume") == f"/runs/{queued}"
    run = desk.run(queued)
    assert (run.status, run.message) == ("queued", "")
    assert run.pulse > before


def test_a_run_is_deleted_with_its_folder_after_a_confirmation(desk, press, queued):
    become(desk, queued, "completed")
    folder = desk.jobs.log_folder(queued)
    page = press.client.get(f"/runs/{queued}/delete").text
    assert str(folder) in page
    assert "cannot be undone" in page
    assert press(queued, "delete") == "/"
    assert not folder.exists()
    assert press.client.get(f"/runs/{queued}/delete").status_code == 404


def test_a_run_that_is_not_over_is_not_deleted(desk, press, queued):
    assert press(queued, "delete")[0] == 409
    assert "stop it first" in press.client.get(f"/runs/{queued}/delete").text
    assert desk.jobs.log_folder(queued).exists()


def test_a_run_without_held_out_prompts_is_not_asked_to_evaluate(desk, press, queued):
    become(desk, queued, "running")
    with desk.jobs.store.write() as session:
        session.get(Run, queued).params = {"evaluation": None}
    assert press(queued, "evaluate")[0] == 409
    assert ">Evaluate now<" not in press.client.get(f"/runs/{queued}").text


def test_the_button_leads_back_to_its_page(desk, press, queued):
    press.client.headers["referer"] = f"http://127.0.0.1/runs/{queued}/journal"
    assert press(queued, "stop") == f"/runs/{queued}/journal"
    press.client.headers["referer"] = "http://evil.example/runs/9"
    assert press(queued, "resume") == f"/runs/{queued}"


def test_the_page_is_as_it_was(desk, press, queued):
    become(desk, queued, "running")
    page = f"/runs/{queued}/trajectories?update=7&group=3"
    press.client.headers["referer"] = f"http://127.0.0.1{page}&asked=evaluate"
    assert press(queued, "checkpoint") == f"{page}&asked=checkpoint"
    assert press(queued, "stop") == page


def test_a_run_goes_on_from_its_checkpoint(desk, press, queued):
    ended(desk, queued, completed=900)
    folder = desk.jobs.place_of(queued) / "output" / "run.checkpoints"
    folder.mkdir(parents=True)
    (folder / "update-000880.ckpt").touch()
    page = press.client.get(f"/runs/{queued}").text
    assert 'title="Goes on from the checkpoint of update 880."' in page
    assert press(queued, "resume") == f"/runs/{queued}"


def test_a_run_that_saved_nothing_keeps_what_it_has(desk, press, queued):
    """To begin again would hide 900 updates."""
    ended(desk, queued, completed=900)
    page = press.client.get(f"/runs/{queued}").text
    assert ">Resume<" not in page
    assert "cannot go on from update 900: there is no checkpoint" in page
    assert f'href="/runs/new?clone={queued}"' in page
    status, words = press(queued, "resume")
    assert status == 409
    assert "Clone config" in words
    assert desk.run(queued).status == "interrupted"


def test_a_run_of_another_machine_is_resumed_there(desk, press, queued):
    ended(desk, queued, completed=0, host="elsewhere")
    page = press.client.get(f"/runs/{queued}").text
    assert "It was made on elsewhere" in page
    assert press(queued, "resume")[0] == 409


def test_a_folder_that_cannot_be_used_is_told_with_the_reason(desk, press, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("app.jobs.runs.save_text", full)
    answer = press.client.post("/runs/new", data={"toml": "[run]"}, headers=press.headers)
    assert answer.status_code == 500
    assert "No space left on device" in answer.text


def test_nothing_acts_on_a_run_that_is_not_there(press):
    for kind in ("stop", "resume", "delete"):
        assert press(999, kind)[0] == 404


def test_a_draft_is_not_run_by_asking(desk, press):
    draft = desk.jobs.create(config_text(2))
    assert press(draft, "resume")[0] == 404
    with pytest.raises(QueueError):
        ask(desk.jobs.store, draft, "stop")


def test_how_many_are_ahead(desk, queued):
    others = [desk.enter(config_text(1)) for _ in range(2)]
    become(desk, queued, "running")
    with desk.jobs.store.read() as session:
        assert [ahead(session, i) for i in others] == [1, 2]
        assert ahead(session) == 3


@pytest.mark.parametrize(
    ("status", "buttons"),
    [
        ("queued", ["Leave the queue"]),
        ("running", ["Checkpoint now", "Stop"]),
        ("stopping", ["Stop now"]),
        ("interrupted", ["Start again"]),
        ("completed", []),
    ],
)
def test_the_buttons_of_each_state(desk, press, queued, status, buttons):
    become(desk, queued, status)
    page = press.client.get(f"/runs/{queued}").text
    shown = [label for label in BUTTONS if f">{label}<" in page]
    assert shown == buttons
    assert "Clone config" in page
    assert ("Delete…" in page) == (status in ("interrupted", "completed"))
