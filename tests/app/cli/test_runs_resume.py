from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest
from desk import Desk, gone, prepare_workspace, slow_text
from sqlalchemy import select

from app.store.models import Update
from app.store.visible import visible_in


@pytest.fixture
def desk(tmp_path):
    desk = Desk.open(tmp_path, prepare_workspace(tmp_path / "workspace"))
    yield desk
    desk.close()


@pytest.mark.full
def test_a_killed_run_of_a_terminal_leaves_no_program_and_is_resumed_there(
    desk, retrograd, retrograd_path
):
    config = desk.workspace / "slow.toml"
    config.write_text(slow_text(9).replace("../runs/smoke_tiny_grpo", "out"))
    store = desk.jobs.store.place
    command = [str(retrograd_path), "train", str(config), "--store", store, "--name", "mine"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as training:
        deadline = time.monotonic() + 90
        while not (runs := desk.all()) or runs[0].completed < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (program,) = desk.programs()
        os.kill(program, signal.SIGSTOP)
        training.kill()
    (run,) = runs
    assert run.source == "terminal"
    desk.wait_until(run.id, "interrupted")
    desk.wait(lambda: gone(program), 10)

    done = retrograd("runs", "resume", str(run.id), "--store", store)
    assert done.returncode == 0, done.stderr
    run = desk.run(run.id)
    assert (run.status, run.completed, run.name) == ("completed", 9, "mine")
    with desk.jobs.store.read() as session:
        told = select(Update.update).where(visible_in(session, run.id, Update))
        assert session.scalars(told.order_by(Update.id)).all() == list(range(1, 10))


def test_a_draft_is_no_run_to_go_on_with(desk, retrograd):
    run_id = desk.jobs.create("[run]")
    done = retrograd("runs", "resume", str(run_id), "--store", desk.jobs.store.place)
    assert done.returncode == 2
    assert f"There is no run {run_id} in " in done.stderr
