from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import threading
import time

import pytest
from sqlalchemy import event, func, select, text
from told_runs import (
    PARAMS,
    enter,
    group,
    groups,
    info,
    outcome,
    tell,
    the_run,
    trajectory,
    values,
    wait_until,
    whole_run,
)

from app.jobs import queue
from app.store.errors import StoreError
from app.store.models import (
    Answer,
    Artifact,
    Event,
    Group,
    Metric,
    MetricName,
    Prompt,
    Request,
    Run,
    Segment,
    Update,
)
from app.store.monitor import StoreMonitor
from app.store.status import seconds_taken
from app.store.visible import visible_in
from trainer.monitor import Event as Told
from trainer.monitor import GroupRecord


def rows(store, model):
    with store.read() as session:
        return session.scalars(select(model).order_by(model.id)).all()


def curve(store, run_id, name="reward/mean"):
    """The points that a chart of the run would have."""
    with store.read() as session:
        found = session.execute(
            select(Metric.update, Metric.value)
            .join(MetricName, MetricName.id == Metric.name_id)
            .where(visible_in(session, run_id, Metric), MetricName.name == name)
            .order_by(Metric.update)
        )
        return [(update, value) for update, value in found]


@pytest.fixture
def monitor(store, tmp_path):
    """One that is told of a run and always ends."""
    made = StoreMonitor(store, enter(store, tmp_path))
    made.run_started(info(tmp_path))
    yield made
    made.run_finished(outcome(0, status="stopped"))


def test_the_run_is_there_when_it_has_started(store, tmp_path, monitor):
    run = the_run(store, monitor.run_id)
    assert (run.status, run.name, run.model, run.planned) == (
        "running",
        "addition",
        "base.gguf",
        20,
    )
    assert run.params == PARAMS
    assert run.facts == {"model": "a small one"}
    assert run.provenance["retrograd"]
    assert run.pid is not None
    assert [(s.number, s.resumed_from, s.status) for s in rows(store, Segment)] == [
        (1, None, "running")
    ]


def test_what_an_update_tells_is_kept_whole(store, monitor):
    tell(monitor, 1)
    monitor.settle()
    assert curve(store, monitor.run_id) == [(1, 0.01)]
    [update] = rows(store, Update)
    assert (update.status, update.steps, update.tokens) == ("trained", 2, 24)
    assert (update.answers, update.trained) == (8, 8)
    assert (update.reward_mean, update.reward_min, update.reward_max) == (0.01, 0.0, 0.75)
    assert update.rewards == [0.0, 0.0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75]
    first, second = rows(store, Group)
    assert (first.number, first.size, first.trained, first.reward_mean) == (0, 4, 4, 0.375)
    assert first.spread == pytest.approx(0.2795, abs=1e-4)
    answer = rows(store, Answer)[5]
    assert (answer.group_id, answer.member, answer.text) == (second.id, 1, "answer 1 1 1 ")
    assert (answer.reward, answer.parts, answer.advantage) == (0.25, {"right": 0.25}, -0.25)
    assert [(p.key, p.line, p.text) for p in rows(store, Prompt)] == [
        ("key-0", 1, "Question number 0?"),
        ("key-1", 2, "Question number 1?"),
    ]
    run = the_run(store, monitor.run_id)
    assert (run.completed, run.steps, run.last_reward, run.sparkline) == (1, 2, 0.01, [0.01])
    assert run.seconds_per_update == 1.5


def test_a_prompt_is_kept_once(store, monitor):
    for update in (1, 2, 3):
        tell(monitor, update)
    monitor.settle()
    assert len(rows(store, Prompt)) == 2
    assert len(rows(store, Group)) == 6


def test_a_number_is_there_for_readers_at_once(store, monitor):
    """The best of a few, since other processes may keep this one waiting."""
    times = []
    for update in range(1, 6):
        monitor.settle()
        time.sleep(0.2)  # so that the writer sleeps, which is when waking it counts
        monitor.metrics(update, "trained", values(update))
        times.append(wait_until(lambda n=update: len(curve(store, monitor.run_id)) == n))
    assert min(times) < 0.2


def test_numbers_that_are_not_finite_are_null_and_later_ones_keep_coming(store, monitor):
    tell(monitor, 1)
    tell(monitor, 2, reward__mean=math.nan)
    tell(monitor, 3, reward__mean=math.inf, reward__max=-math.inf)
    tell(monitor, 4)
    monitor.settle()
    assert curve(store, monitor.run_id) == [(1, 0.01), (2, None), (3, None), (4, 0.04)]
    run = the_run(store, monitor.run_id)
    assert run.sparkline == [0.01, None, None, 0.04]
    assert run.last_reward == 0.04
    assert [u.reward_max for u in rows(store, Update)] == [0.75, 0.75, None, 0.75]
    json.dumps([run.sparkline, run.findings], allow_nan=False)


def test_an_answer_with_such_a_number_is_kept_and_told(store, monitor):
    record = GroupRecord(0, group(0, [("a", 1.0)]).prompt, [trajectory(0, "a", 1.0)])
    broken = dataclasses.replace(record.trajectories[0], advantage=math.nan, parts={"x": math.inf})
    told = dataclasses.replace(record, trajectories=[broken, broken])
    monitor.trajectories(1, [told, dataclasses.replace(told, group=1)])
    monitor.metrics(1, "trained", values(1))
    monitor.settle()
    answer = rows(store, Answer)[0]
    assert (answer.advantage, answer.parts) == (0.0, {"x": None})
    [event] = rows(store, Event)
    assert (event.code, event.update) == ("nonfinite_answer", 1)
    assert event.message.startswith("4 answers"), "told once for the update"


def test_text_that_no_database_takes_is_made_so_that_it_does(store, monitor):
    record = group(0, [("nul \0 and \ud800 alone", 1.0), ("é 数 😀", 0.0)])
    monitor.trajectories(1, [record])
    monitor.event(Told("warning", "odd", "\0 \udfff", data={"path": "\ud800"}))
    monitor.settle()
    assert [a.text for a in rows(store, Answer)] == ["nul \ufffd and \ufffd alone", "é 数 😀"]
    assert the_run(store, monitor.run_id).lost == 0
    assert rows(store, Event)[0].data == {"path": "\ufffd"}


def test_an_answer_like_an_earlier_one_of_its_group_is_marked(store, monitor):
    monitor.trajectories(1, [group(0, [("a", 1.0), ("b", 0.0), ("a", 1.0)]), group(1, [("a", 0)])])
    monitor.settle()
    assert [a.duplicate for a in rows(store, Answer)] == [False, False, True, False]


def test_texts_are_kept_as_often_and_as_long_as_the_configuration_says(store, tmp_path):
    observe = {"directory": None, "every": 2, "max_text_chars": 6}
    monitor = StoreMonitor(store, enter(store, tmp_path))
    monitor.run_started(info(tmp_path, params=PARAMS | {"observe": observe}))
    for update in (1, 2, 3):
        monitor.trajectories(update, [group(0, [("long answer", 1.0)])])
    monitor.evaluation(2, [group(0, [("held-out", 1.0)])], {"eval/mean_reward": 1.0})
    monitor.run_finished(outcome(3))
    found = [(a.update, a.text, a.chars) for a in rows(store, Answer)]
    assert found == [(1, "long a", 11), (2, None, 11), (3, "long a", 11), (2, "held-o", 8)]
    assert rows(store, Prompt)[0].messages == [
        {"role": "user", "content": "Questi", "content_chars": 18}
    ]


def test_an_evaluation_has_rows_of_its_own(store, monitor):
    monitor.evaluation(0, [group(0, [("a", 0.5)])], {"eval/mean_reward": 0.5})
    tell(monitor, 1)
    monitor.evaluation(1, [group(0, [("b", 1.0)])], {"eval/mean_reward": 1.0})
    monitor.settle()
    assert [(u.kind, u.update, u.status, u.reward_mean) for u in rows(store, Update)] == [
        ("evaluation", 0, "evaluation", 0.5),
        ("train", 1, "trained", 0.01),
        ("evaluation", 1, "evaluation", 1.0),
    ]
    assert curve(store, monitor.run_id, "eval/mean_reward") == [(0, 0.5), (1, 1.0)]
    run = the_run(store, monitor.run_id)
    assert (run.last_evaluation, run.completed) == (1.0, 1)


def test_the_run_says_where_its_update_stands(store, monitor):
    before = the_run(store, monitor.run_id).pulse
    for done in range(100):
        monitor.progress("generate", done, 100)
    wait_until(lambda: the_run(store, monitor.run_id).stage_done == 99)
    run = the_run(store, monitor.run_id)
    assert (run.stage, run.stage_total) == ("generate", 100)
    assert before < run.pulse < before + 20, "not a transaction for each"


def test_the_heart_beats_when_nothing_happens(store, monitor):
    monitor.settle()
    before = the_run(store, monitor.run_id)
    wait_until(lambda: the_run(store, monitor.run_id).heartbeat_at > before.heartbeat_at + 1)
    assert the_run(store, monitor.run_id).pulse <= before.pulse + 1, "the model's digest at most"


def test_findings_and_the_audit_are_those_of_now(store, monitor):
    for update in range(1, 9):
        tell(monitor, update, policy__clip_fraction=0.9, audit__verbosity=0.8)
    monitor.settle()
    run = the_run(store, monitor.run_id)
    assert [finding["metric"] for finding in run.findings] == [
        "audit/verbosity",
        "policy/clip_fraction",
    ]
    assert run.audited == ["verbosity"]
    for update in range(9, 20):
        tell(monitor, update, policy__clip_fraction=0.1, audit__verbosity=0.1)
    monitor.settle()
    run = the_run(store, monitor.run_id)
    assert (run.findings, run.audited) == ([], [])


def test_how_a_run_ended_and_what_it_left(store, tmp_path):
    (tmp_path / "adapter.gguf").write_bytes(b"weights")
    (tmp_path / "observe.jsonl").write_bytes(b"{}\n")
    folder = tmp_path / "adapter.checkpoints"
    folder.mkdir()
    (folder / "update-000002.ckpt").write_bytes(b"state")
    params = PARAMS | {"observe": {"directory": str(tmp_path), "every": 1, "max_text_chars": 0}}
    monitor = StoreMonitor(store, enter(store, tmp_path))
    monitor.run_started(info(tmp_path, params=params))
    tell(monitor, 1)
    monitor.run_finished(outcome(1, output=str(tmp_path / "adapter.gguf")))
    run = the_run(store, monitor.run_id)
    assert (run.status, run.message) == ("completed", "completed after 1 updates")
    assert run.ended_at is not None
    assert [s.status for s in rows(store, Segment)] == ["completed"]
    found = {a.kind: (a.path, a.size, a.update) for a in rows(store, Artifact)}
    assert found == {
        "adapter": (str(tmp_path / "adapter.gguf"), 7, 1),
        "config": (str(tmp_path / "run.toml"), 6, None),
        "observe": (str(tmp_path / "observe.jsonl"), 3, None),
        "checkpoint": (str(folder / "update-000002.ckpt"), 5, 2),
    }
    adapter = next(a for a in rows(store, Artifact) if a.kind == "adapter")
    assert adapter.sha256 == hashlib.sha256(b"weights").hexdigest()


def test_checkpoints_are_listed_while_the_run_goes_on(store, tmp_path, monitor):
    folder = tmp_path / "adapter.checkpoints"
    folder.mkdir()
    for update in (1, 2):
        (folder / f"update-00000{update}.ckpt").write_bytes(b"state")
        monitor.event(Told("info", "checkpoint", "saved", update))
        wait_until(lambda n=update: [a.update for a in rows(store, Artifact)] == [n])
        (folder / f"update-00000{update}.ckpt").unlink()


def test_an_update_that_did_not_end_was_not_trained_on(store, tmp_path):
    monitor = StoreMonitor(store, enter(store, tmp_path))
    monitor.run_started(info(tmp_path))
    tell(monitor, 1)
    monitor.trajectories(2, groups(2))
    monitor.run_finished(outcome(1, status="failed", message="out of memory"))
    assert [(u.update, u.status, u.trained) for u in rows(store, Update)] == [
        (1, "trained", 8),
        (2, "skipped", 0),
    ]
    assert {(a.update, a.trained, a.skip_reason) for a in rows(store, Answer)} == {
        (1, True, None),
        (2, False, "update_skipped"),
    }
    assert [(g.update, g.trained) for g in rows(store, Group)][2:] == [(2, 0), (2, 0)]
    assert the_run(store, monitor.run_id).completed == 1


def test_a_run_that_goes_on_shows_no_point_twice(store, tmp_path):
    """Checkpoint at 10, crash at 15, resume: 11 to 15 are told twice."""
    run_id = whole_run(store, tmp_path, 15, end=False).run_id
    again = StoreMonitor(store, run_id)
    again.run_started(info(tmp_path, resumed_from_update=10))
    assert [update for update, _ in curve(store, run_id)] == list(range(1, 11))
    run = the_run(store, run_id)
    assert (run.completed, run.steps, len(run.sparkline)) == (10, 20, 10)
    for update in range(11, 19):
        tell(again, update, reward__mean=1.0)
    again.run_finished(outcome(18))
    assert curve(store, run_id) == [(u, u / 100) for u in range(1, 11)] + [
        (u, 1.0) for u in range(11, 19)
    ]
    with store.read() as session:
        for model, each in ((Update, 1), (Group, 2), (Answer, 8)):
            counted = session.execute(
                select(model.update, func.count())
                .where(visible_in(session, run_id, model))
                .group_by(model.update)
            )
            assert dict(counted.all()) == dict.fromkeys(range(1, 19), each)
        last = session.scalars(select(Update).order_by(Update.id.desc()).limit(1)).one()
    assert last.tokens == 18 * 24, "counted over the whole run, what was thrown away left out"
    segments = [(s.number, s.resumed_from, s.visible_until, s.status) for s in rows(store, Segment)]
    assert segments == [(1, None, 10, "interrupted"), (2, 10, None, "completed")]
    run = the_run(store, run_id)
    assert (run.status, run.completed, run.sparkline[9:11]) == ("completed", 18, [0.1, 1.0])


def test_others_write_while_a_run_that_goes_on_reads_its_past(file_store, tmp_path):
    run_id = whole_run(file_store, tmp_path, 3, end=False).run_id
    written = []

    def write(_connection, _cursor, statement, *_):
        if "FROM metrics" in statement and not written:
            written.append(1)
            with file_store.write(0.1) as session:
                session.execute(text("UPDATE runs SET queued_at = 7"))

    event.listen(file_store.engine, "before_cursor_execute", write)
    again = StoreMonitor(file_store, run_id)
    again.run_started(info(tmp_path, resumed_from_update=2))
    event.remove(file_store.engine, "before_cursor_execute", write)
    assert written
    run = the_run(file_store, run_id)
    assert (run.queued_at, run.completed, run.sparkline) == (7, 2, [0.01, 0.02])
    again.run_finished(outcome(2))


def test_a_run_that_begins_again_hides_all_that_was(store, tmp_path):
    run_id = whole_run(store, tmp_path, 3, end=False).run_id
    again = StoreMonitor(store, run_id)
    again.run_started(info(tmp_path))
    tell(again, 1, reward__mean=1.0)
    again.run_finished(outcome(1))
    assert curve(store, run_id) == [(1, 1.0)]
    assert the_run(store, run_id).sparkline == [1.0]


def test_the_time_in_which_a_run_lay_still_is_not_its_own(store, tmp_path):
    run_id = whole_run(store, tmp_path, 2).run_id
    with store.write() as session:
        session.get_one(Run, run_id).started_at -= 1000.0
        for segment in session.scalars(select(Segment)):
            segment.started_at -= 1000.0
            segment.ended_at = segment.started_at + 60.0
    again = StoreMonitor(store, run_id)
    again.run_started(info(tmp_path, resumed_from_update=2))
    again.run_finished(outcome(2))
    assert seconds_taken(the_run(store, run_id), time.time()) == pytest.approx(60.0, abs=5.0)


def test_resuming_twice_keeps_the_narrower_bound(store, tmp_path):
    run_id = whole_run(store, tmp_path, 9, end=False).run_id
    for resumed_from, until in ((4, 8), (6, 7)):
        again = StoreMonitor(store, run_id)
        again.run_started(info(tmp_path, resumed_from_update=resumed_from))
        for update in range(resumed_from + 1, until + 1):
            tell(again, update, reward__mean=float(resumed_from))
        again.run_finished(outcome(until))
    assert [value for _, value in curve(store, run_id)] == [0.01, 0.02, 0.03, 0.04, 4.0, 4.0, 6.0]


def test_somebody_may_ask_for_things(store, monitor):
    assert not monitor.should_stop()
    with store.write() as session:
        for kind in ("checkpoint", "stop"):
            session.add(Request(run_id=monitor.run_id, kind=kind, created_at=time.time()))
    wait_until(monitor.should_stop)
    assert monitor.requested() == {"checkpoint"}
    assert monitor.requested() == frozenset(), "once"
    wait_until(lambda: all(request.handled_at for request in rows(store, Request)))
    wait_until(lambda: the_run(store, monitor.run_id).status == "stopping")


def test_a_run_that_ends_while_it_is_asked_to_stop_has_ended(store, tmp_path):
    monitor = StoreMonitor(store, enter(store, tmp_path))
    monitor.run_started(info(tmp_path))
    asked, ended = threading.Event(), threading.Event()

    def pause(_connection, _cursor, statement, *_):
        if statement.startswith("UPDATE requests"):
            asked.set()
            ended.wait(10)

    event.listen(store.engine, "before_cursor_execute", pause)
    with store.write() as session:
        session.add(Request(run_id=monitor.run_id, kind="stop", created_at=time.time()))
    assert asked.wait(10)
    end = threading.Thread(target=monitor.run_finished, args=[outcome(3)])
    end.start()
    wait_until(lambda: monitor._inbox._waiting)
    ended.set()
    end.join()
    assert the_run(store, monitor.run_id).status == "completed"
    assert [segment.status for segment in rows(store, Segment)] == ["completed"]


def test_who_waits_hears_that_the_run_was_asked_to_stop(store, tmp_path):
    said = []
    monitor = StoreMonitor(store, enter(store, tmp_path), said.append)
    monitor.run_started(info(tmp_path))
    with store.write() as session:
        session.add(Request(run_id=monitor.run_id, kind="stop", created_at=time.time()))
    wait_until(monitor.should_stop)
    assert monitor.should_stop()
    assert len(said) == 1
    assert "asked this run to stop" in said[0]
    monitor.run_finished(outcome(0, status="stopped"))


def test_what_was_asked_of_an_earlier_process_is_forgotten(store, tmp_path):
    run_id = enter(store, tmp_path, queued_at=time.time())
    with store.write() as session:
        session.add(Request(run_id=run_id, kind="stop", created_at=time.time() - 60))
    monitor = StoreMonitor(store, run_id)
    monitor.run_started(info(tmp_path))
    with store.write() as session:
        session.add(Request(run_id=run_id, kind="checkpoint", created_at=time.time()))
    wait_until(lambda: all(request.handled_at for request in rows(store, Request)))
    assert monitor.requested() == {"checkpoint"}, "it has looked"
    assert not monitor.should_stop()
    monitor.run_finished(outcome(0))


def test_a_run_that_is_not_there_cannot_start(store, tmp_path):
    with pytest.raises(StoreError, match="no run 7"):
        StoreMonitor(store, 7).run_started(info(tmp_path))


def test_what_is_asked_before_the_start_does_no_harm(store):
    monitor = StoreMonitor(store, 1)
    monitor.progress("prepare", 0, 3)
    monitor.settle()
    assert not monitor.should_stop()
    assert monitor.requested() == frozenset()
    monitor.run_finished(outcome(0))


def test_the_model_is_named_by_its_digest(store, tmp_path):
    (tmp_path / "base.gguf").write_bytes(b"GGUF")
    run_id = whole_run(store, tmp_path, 1).run_id
    assert the_run(store, run_id).provenance["base model"] == hashlib.sha256(b"GGUF").hexdigest()


def test_ids_grow_and_pulses_with_them(store, monitor):
    pulses = [the_run(store, monitor.run_id).pulse]
    for update in range(1, 4):
        tell(monitor, update)
        monitor.settle()
        pulses.append(the_run(store, monitor.run_id).pulse)
    assert pulses == sorted(set(pulses))
    updates = [m.update for m in rows(store, Metric)]
    assert updates == sorted(updates)


def test_two_runs_share_the_names_of_their_metrics(store, tmp_path):
    first, second = (whole_run(store, tmp_path, 1) for _ in range(2))
    assert first.run_id != second.run_id
    names = [name.name for name in rows(store, MetricName)]
    assert len(names) == len(set(names)) == 7
    assert curve(store, first.run_id) == curve(store, second.run_id) == [(1, 0.01)]
    assert len(rows(store, Run)) == 2


def test_the_last_loss_of_a_long_run_of_texts_is_that_of_its_last_update(store, tmp_path):
    monitor = StoreMonitor(store, enter(store, tmp_path, algorithm="sft"))
    monitor.run_started(info(tmp_path, updates=200, algorithm="sft", params={}))
    for update in range(1, 201):
        monitor.metrics(update, "trained", {"sft/loss": 1.0 / update})
    monitor.run_finished(outcome(200))
    run = the_run(store, monitor.run_id)
    assert run.last_reward == 1.0 / 200
    assert run.sparkline[-1] > 1.0 / 200, "a point stands for several updates"


def test_the_journal_tells_that_a_run_was_stopped_and_went_on(store, tmp_path):
    run_id = whole_run(store, tmp_path, 2, end=False).run_id
    queue.ask(store, run_id, "stop")
    second = StoreMonitor(store, run_id)
    second.run_started(info(tmp_path, resumed_from_update=2))
    second.run_finished(outcome(2))
    told = [(event.code, event.message, event.update) for event in rows(store, Event)]
    assert told == [
        ("stop_asked", "Somebody asked the run to stop.", None),
        ("resumed", "The run goes on after update 2.", 2),
    ]
