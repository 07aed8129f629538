from __future__ import annotations

import psutil
import pytest
from desk import Desk, config_text, prepare_workspace
from event_files import curve

from app.jobs import queue
from app.jobs.worker import main


@pytest.mark.full
def test_a_run_in_postgresql_whose_password_is_on_no_command_line(postgres, tmp_path):
    url = postgres.new_database().replace("@", ":unguessable@", 1)
    desk = Desk.open(
        tmp_path, prepare_workspace(tmp_path / "workspace"), url=url, data_folder=tmp_path / "data"
    )
    assert "unguessable" in desk.jobs.store.engine.url.render_as_string(hide_password=False)
    run_id = desk.enter(config_text(2))
    desk.wait_until(run_id, "running")
    words = psutil.Process(desk.run(run_id).pid).cmdline()
    assert "app.jobs.worker" in words
    assert "unguessable" not in " ".join(words)
    run = desk.wait_until(run_id, "completed")
    assert run.folder == str(tmp_path / "data" / "runs" / str(run_id))
    assert "unguessable" not in str(run.provenance)
    desk.close()


def test_a_run_that_nobody_claimed_is_left_alone(desk, capsys):
    run_id = desk.enter(config_text(2))
    assert main(["--run", str(run_id), "--store", desk.jobs.store.place]) == 3
    assert "is not to be started by this process" in capsys.readouterr().err
    assert desk.run(run_id).status == "queued"
    queue.ask(desk.jobs.store, run_id, "stop")


def test_a_run_of_the_browser_writes_for_tensorboard_inside_its_folder(tmp_path):
    desk = Desk.open(tmp_path, prepare_workspace(tmp_path / "workspace"))
    text = config_text(2) + f'\n[metrics]\ntensorboard_dir = "{tmp_path}/elsewhere"\n'
    run_id = desk.enter(text)
    run = desk.wait_until(run_id, "completed")
    assert not (tmp_path / "elsewhere").exists()
    (folder,) = (desk.jobs.place_of(run_id) / "output/tensorboard").iterdir()
    assert folder.is_relative_to(run.folder)
    assert [step for step, _ in curve(folder, "reward/mean")] == [1, 2]
    desk.close()
