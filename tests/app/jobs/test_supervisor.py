from __future__ import annotations

import os
import signal
import sqlite3
from pathlib import Path

import pytest
from desk import config_text, gone, slow_text, upload
from sqlalchemy import select

from app.jobs import queue
from app.jobs.checks import read_checks
from app.jobs.resumption import resumption
from app.jobs.supervisor import Supervisor
from app.jobs.workspace import LOG
from app.store.models import Run, Update
from app.store.registry import mark_interrupted
from app.store.visible import visible_in


def updates(desk, run_id):
    """The visible updates of a run, as the pages count them."""
    with desk.jobs.store.read() as session:
        return session.scalars(
            select(Update.update).where(visible_in(session, run_id, Update)).order_by(Update.id)
        ).all()


def test_the_oldest_runs_first_and_the_others_wait(desk):
    first, second = desk.enter(config_text(2)), desk.enter(config_text(2))
    desk.supervisor.turn()
    assert [desk.run(i).status for i in (first, second)] == ["starting", "queued"]
    queue.ask(desk.jobs.store, second, "stop")
    run = desk.wait_until(first, "completed")
    assert (run.completed, run.message) == (2, "completed after 2 updates")
    assert Path(run.output).is_relative_to(run.folder)
    assert "update 2/2" in (Path(run.folder) / LOG).read_text()
    assert desk.run(second).started_at is None


@pytest.mark.full
def test_a_stopped_run_keeps_its_adapter_and_goes_on_when_it_is_resumed(desk):
    run_id = desk.enter(slow_text())
    desk.wait_for_updates(run_id, 3)
    queue.ask(desk.jobs.store, run_id, "stop")
    assert desk.run(run_id).status == "stopping"
    run = desk.wait_until(run_id, "stopped")
    assert Path(run.output).is_file()
    before = run.completed

    queue.enqueue(desk.jobs.store, run_id)
    desk.wait_for_updates(run_id, before + 2)
    seen = updates(desk, run_id)
    assert seen == list(range(1, len(seen) + 1))


@pytest.mark.full
def test_a_killed_run_leaves_no_program_and_resumes_without_doubled_points(desk):
    run_id = desk.enter(slow_text())
    desk.wait_for_updates(run_id, 3)
    (program,) = desk.programs()
    os.kill(program, signal.SIGSTOP)  # so that it does not notice the end of its input
    os.kill(desk.run(run_id).pid, signal.SIGKILL)
    desk.supervisor._children.pop(run_id).wait()
    # `retrograd runs list` notices a death as well, and knows nothing of reward programs.
    assert mark_interrupted(desk.jobs.store) == [run_id]
    desk.wait(lambda: gone(program), 10)

    queue.enqueue(desk.jobs.store, run_id)
    desk.wait_until(run_id, "running")
    desk.wait(lambda: len(updates(desk, run_id)) > 4)
    seen = updates(desk, run_id)
    assert seen == list(range(1, len(seen) + 1))


@pytest.mark.full
def test_a_program_that_ignores_the_end_of_its_input_does_not_outlive_its_killed_run(desk):
    stubborn = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"open({str(desk.workspace / 'pids.txt')!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(600)\n"
    )
    text = config_text(reward_command='["python3", "stubborn.py"]')
    run_id = desk.enter(text, upload("stubborn.py", stubborn))
    desk.wait(lambda: (desk.workspace / "pids.txt").exists() and len(desk.programs()) == 2)
    desk.wait(lambda: desk.run(run_id).status == "running")
    os.kill(desk.run(run_id).pid, signal.SIGKILL)
    desk.wait_until(run_id, "interrupted")
    desk.wait(lambda: all(gone(pid) for pid in desk.programs()), 10)


@pytest.mark.full
def test_asked_twice_a_run_ends_at_once_even_if_its_program_hangs(desk):
    text = config_text(reward_command='["python3", "hang.py"]')
    pids = str(desk.workspace / "pids.txt")
    hang = f"import os, time\nopen({pids!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    run_id = desk.enter(text, upload("hang.py", hang))
    desk.wait_until(run_id, "running")
    queue.ask(desk.jobs.store, run_id, "stop")
    queue.ask(desk.jobs.store, run_id, "stop")
    desk.wait_until(run_id, "stopped", "failed")
    assert all(gone(pid) for pid in desk.programs())


@pytest.mark.full
def test_a_run_that_fails_says_why_with_the_programs_own_words(desk):
    text = config_text(reward_command='["python3", "broken.py"]')
    program = "import sys\nsys.stderr.write('no such dictionary: words.txt')\nsys.exit(4)\n"
    run = desk.wait_until(desk.enter(text, upload("broken.py", program)), "failed")
    assert "no such dictionary: words.txt" in run.message
    assert "status 4" in run.message


def test_a_process_that_dies_without_a_word_leaves_the_end_of_its_log(desk):
    run_id = desk.enter(config_text())
    log = desk.jobs.log_folder(run_id) / LOG
    log.write_text("of an earlier attempt\n")
    desk.supervisor.turn()
    with log.open("a") as file:
        file.write("Illegal instruction\n")
    os.kill(desk.supervisor._children[run_id].pid, signal.SIGKILL)
    run = desk.wait_until(run_id, "interrupted")
    assert "without a word (ended by SIGKILL) before it began to train" in run.message
    assert run.message.endswith("Its log ends with:\nIllegal instruction")


@pytest.mark.full
def test_two_servers_never_start_a_run_twice(desk):
    ids = [desk.enter(config_text(1)) for _ in range(2)]
    other = Supervisor(desk.jobs)
    desk.supervisor.start()
    other.start()
    try:
        desk.wait_until(ids[-1], "completed")
    finally:
        other.stop()
        desk.supervisor.stop()
        for process in other._children.values():
            process.wait(30)  # it has said that the run is over, and puts things away
    for run_id in ids:
        assert desk.run(run_id).status == "completed"
        with sqlite3.connect(desk.jobs.store.place) as database:
            counted = database.execute(
                "SELECT count(*) FROM segments WHERE run_id = ?", (run_id,)
            ).fetchone()
        assert counted == (1,)


def test_a_claim_that_was_never_acted_on_is_given_back(desk):
    run_id = desk.enter(config_text(1))
    assert queue.claim(desk.jobs.store, 1).run_id == run_id
    with desk.jobs.store.write() as session:
        session.get(Run, run_id).heartbeat_at -= 60
    Supervisor(desk.jobs)._bury()
    assert desk.run(run_id).status == "queued"


def test_a_run_is_stopped_and_has_a_checkpoint_to_go_on_from(desk):
    run_id = desk.enter(slow_text())
    desk.wait_for_updates(run_id, 2)
    queue.ask(desk.jobs.store, run_id, "stop")
    run = desk.wait_until(run_id, "stopped")
    assert Path(run.output).is_file()
    assert resumption(run).words == f"Goes on from the checkpoint of update {run.completed}."


def test_a_run_that_fails_says_why_and_no_program_sees_the_store(desk):
    program = "import os, sys\nsys.exit(f'seen: {os.environ.get(\"RETROGRAD_STORE\")}')\n"
    text = config_text(2, reward_command='["python3", "spy.py"]')
    run_id = desk.enter(text, upload("spy.py", program))
    run = desk.wait_until(run_id, "failed")
    assert "seen: None" in run.message
    assert resumption(run).label == "Start again"


def test_nor_do_programs_that_are_only_checked(desk, monkeypatch):
    monkeypatch.setenv("RETROGRAD_STORE", "postgresql://me:password@host/runs")
    program = "import os, sys\nsys.exit(f'seen: {os.environ.get(\"RETROGRAD_STORE\")}')\n"
    text = config_text(2, reward_command='["python3", "spy.py"]')
    draft = desk.jobs.create(text, [upload("spy.py", program)])
    desk.jobs.begin_checks(draft)
    folder = desk.jobs.place_of(draft)
    desk.wait(lambda: read_checks(folder).state != "running")
    assert "seen: None" in str(read_checks(folder).findings)


@pytest.mark.full
def test_a_run_whose_checkpoint_is_gone_hides_nothing(desk):
    run_id = desk.enter(config_text(1))
    run = desk.wait_until(run_id, "completed")
    desk.wait(lambda: not desk.supervisor._children)  # it puts its last things away
    for checkpoint in Path(run.output).parent.glob("*/*.ckpt"):
        checkpoint.unlink()
    with desk.jobs.store.write() as session:
        session.get(Run, run_id).status = "interrupted"
    queue.enqueue(desk.jobs.store, run_id)
    run = desk.wait_until(run_id, "failed")
    assert "is not there any more" in run.message
    assert updates(desk, run_id) == [1]
