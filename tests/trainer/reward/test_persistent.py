import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from types import SimpleNamespace

import psutil
import pytest
from left_over import left
from reward_programs import ONE_BY_ONE, rewards, score_error

from trainer.errors import RewardError

ECHO_ALL = "for r in requests: reply(r, len(r['completion']))"


def test_program_that_answers_one_by_one(open_program, requests_of):
    with open_program(ONE_BY_ONE) as program:
        assert rewards(program.score(requests_of("a", "bb", "ccc"))) == [1, 2, 3]
        assert rewards(program.score(requests_of("dddd"))) == [4]


def test_program_that_answers_at_the_end_of_the_batch(answering, requests_of):
    with answering(ECHO_ALL) as program:
        assert rewards(program.score(requests_of("a", "bb"))) == [1, 2]
        assert rewards(program.score(requests_of("ccc"))) == [3]


def test_one_process_serves_every_batch(answering, requests_of):
    with answering("import os\nfor r in requests: reply(r, os.getpid())") as program:
        first = rewards(program.score(requests_of("a")))
        assert rewards(program.score(requests_of("b"))) == first


def test_replies_are_matched_by_index(answering, requests_of):
    with answering("for r in reversed(requests): reply(r, len(r['completion']))") as program:
        assert rewards(program.score(requests_of("a", "bb", "ccc"))) == [1, 2, 3]


def test_empty_batch_sends_nothing(answering, requests_of):
    with answering(ECHO_ALL) as program:
        assert program.score([]) == []
        assert rewards(program.score(requests_of("a"))) == [1]


def test_program_sees_metadata_and_messages_and_sends_parts(answering, requests_of):
    body = """
    for r in requests:
        right = r["metadata"]["answer"] == r["completion"]
        reply(r, float(right), parts={"turns": len(r["messages"]), "right": right * 1})
    """
    with answering(body) as program:
        replies = program.score(requests_of("4", "5", answer="4"))
    assert rewards(replies) == [1.0, 0.0]
    assert replies[0].parts == {"turns": 4.0, "right": 1.0}


def test_judge_weight_passes_when_there_is_a_judge(answering, requests_of):
    with answering("for r in requests: reply(r, judge_weight=0.25)", judge=True) as program:
        assert program.score(requests_of("a"))[0].judge_weight == 0.25


def test_judge_weight_is_an_error_without_a_judge(answering, requests_of):
    program = answering("for r in requests: reply(r, judge_weight=0.25)")
    assert "this run has no judge" in score_error(program, requests_of("a"))


def test_progress_is_told_at_each_reply(answering, requests_of):
    seen = []
    with answering(ECHO_ALL) as program:
        program.score(requests_of("a", "b"), lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]


def test_stderr_flood_does_not_block(answering, requests_of):
    body = "for r in requests: sys.stderr.write('x' * 10_000); reply(r)"
    with answering("sys.stderr.write('y' * 1_100_000)\n" + body) as program:
        assert len(program.score(requests_of(*"abcdefgh"))) == 8
        program.close()
        assert program.stderr_tail() == "x" * (16 * 1024)


def test_what_it_says_on_stderr_is_told_once(answering, requests_of):
    said = []
    body = "for r in requests: print('saw', r['completion'], file=sys.stderr, flush=True); reply(r)"
    with answering(body, on_stderr=said.append) as program:
        program.score(requests_of("a"))
        program.score(requests_of("b"))
    assert "".join(said) == "saw a\nsaw b\n"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("reply(requests[0])", "1 replies for 4 requests; missing are the indices 1, 2, 3"),
        ("for r in requests[:3]: reply(r)", "missing are the indices 3, received were 0, 1, 2"),
        ("for r in requests + requests[:1]: reply(r)", "second reply with index 0 after all 4"),
        ("reply(requests[2]); reply(requests[2])", "expected were the indices 0, 1, 3, received"),
        ("reply({**requests[0], '_retrograd_index': 9})", "_retrograd_index 9; expected were 0 to"),
        ("reply({**requests[0], '_retrograd_batch': 9})", "_retrograd_batch 9; 1 was expected"),
        ("print('{\"reward\": 1}', flush=True)", "without _retrograd_batch and _retrograd_index"),
        ("print('{\"_retrograd_batch_end\": 7}', flush=True)", "echoed the end of the batch wrong"),
    ],
)
def test_wrong_count_or_index_is_named(answering, requests_of, body, problem):
    assert problem in score_error(answering(body), requests_of(*"abcd"))


@pytest.mark.parametrize(
    "value", ["null", "NaN", "Infinity", "-Infinity", '"0.7"', "true", "1e999"]
)
def test_bad_reward_is_shown_with_line_prompt_and_answer(answering, requests_of, value):
    body = f"""
    reply(requests[0])
    print('{{"_retrograd_batch": 1, "_retrograd_index": 1, "reward": {value}}}', flush=True)
    """
    message = score_error(answering(body), requests_of("first", "second"))
    assert f'"reward": {value}}}' in message
    assert 'Prompt (line 7 of the prompts): "What is 2 + 2?". Answer: "second"' in message


def test_death_shows_exit_status_progress_and_stderr(answering, requests_of):
    body = "reply(requests[0]); sys.stderr.write('no weights\\n'); sys.exit(3)"
    message = score_error(answering(body), requests_of("a", "b"))
    assert "ended (exit status 3) after it scored 1 of 2 answers of batch 1" in message
    assert message.endswith("Its stderr ends with:\nno weights")


def test_death_by_signal_is_named(answering, requests_of):
    program = answering("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert "killed by SIGSEGV" in score_error(program, requests_of("a"))


def test_death_is_seen_though_a_child_holds_stdout(answering, requests_of):
    body = "import os, subprocess; subprocess.Popen(['sleep', '600']); os._exit(5)"
    started = time.monotonic()
    assert "exit status 5" in score_error(answering(body), requests_of("a"))
    assert time.monotonic() - started < 10


def test_closed_stdout_is_not_called_a_death(answering, requests_of):
    body = "import os; os.close(1); time.sleep(600)"
    assert "closed its standard output" in score_error(answering(body), requests_of("a"))


def test_traceback_is_in_the_error(answering, requests_of):
    assert "ZeroDivisionError" in score_error(answering("1 / 0"), requests_of("a"))


def test_hang_ends_at_the_timeout(answering, requests_of):
    program = answering("reply(requests[0]); time.sleep(600)", timeout=1.5)
    started = time.monotonic()
    message = score_error(program, requests_of("a", "b"))
    assert time.monotonic() - started < 5
    assert "scored 1 of 2 answers of batch 1 within 1.5 s (reward_timeout_seconds)" in message
    assert 'Answer: "b"' in message


def test_timeout_starts_anew_with_each_batch(answering, requests_of):
    with answering("time.sleep(0.9)\nfor r in requests: reply(r)", timeout=1.7) as program:
        for _ in range(2):
            assert len(program.score(requests_of("a"))) == 1


def test_missing_end_of_batch_is_named(answering, requests_of):
    program = answering("for r in requests: reply(r)\ntime.sleep(600)", timeout=1.5)
    assert "scored 1 of 1 answers of batch 1 but did not echo its end" in score_error(
        program, requests_of("a")
    )


def test_twenty_timeouts_leave_nothing(open_program, requests_of):
    script = "#!/bin/sh\nsleep 600 &\nsh -c 'sleep 600 & wait' &\nsleep 600\n"
    me = psutil.Process()
    before = (me.num_fds(), threading.active_count())
    for _ in range(20):
        assert "within 0.1 s" in score_error(open_program(script, timeout=0.1), requests_of("a"))
    assert left() == []
    assert (me.num_fds(), threading.active_count()) == before


def test_after_a_failure_nothing_is_scored(answering, requests_of):
    with answering("1 / 0") as program:
        with pytest.raises(RewardError, match="ZeroDivisionError"):
            program.score(requests_of("a"))
        with pytest.raises(RewardError, match="scores no further answers"):
            program.score(requests_of("a"))


def test_interrupt_in_the_middle_ends_the_program(answering, requests_of):
    def interrupt(done, total):
        raise KeyboardInterrupt

    with answering(ECHO_ALL) as program:
        with pytest.raises(KeyboardInterrupt):
            program.score(requests_of("a", "b"), interrupt)
        assert left() == []


def test_program_ends_by_itself_when_its_input_closes(tmp_path, open_program, requests_of):
    source = ONE_BY_ONE + "print('bye ' * 50_000)\nopen('ended', 'w').close()\n"
    with open_program(source) as program:
        program.score(requests_of("a"))
    assert (tmp_path / "ended").exists()


def test_closing_ends_a_program_that_stays(monkeypatch, answering, requests_of):
    monkeypatch.setattr("trainer.reward.persistent.CLOSE_PATIENCE_SECONDS", 0.3)
    body = """
    import atexit, subprocess
    subprocess.Popen(["sleep", "600"])
    atexit.register(time.sleep, 600)
    for r in requests: reply(r)
    """
    started = time.monotonic()
    with answering(body) as program:
        program.score(requests_of("a"))
    assert time.monotonic() - started < 5


def test_closing_before_the_first_batch(open_program):
    open_program(ONE_BY_ONE).close()


def test_program_gets_end_of_input_when_retrograd_is_killed(tmp_path):
    source = "import sys\nsys.stdin.read()\nopen('ended', 'w').close()\n"
    (tmp_path / "reward.py").write_text(source)
    parent = f"""
    from pathlib import Path
    from trainer.reward.program import open_reward_program
    program = open_reward_program(["python3", "reward.py"], mode="persistent",
        timeout_seconds=9, folder=Path({str(tmp_path)!r}), judge_allowed=False)
    print("up", flush=True)
    input()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"up\n"
        os.kill(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while not (tmp_path / "ended").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.2)  # The file is the last thing it does before it ends.


def test_a_channel_that_cannot_be_opened_leaves_no_process(open_program, monkeypatch):
    def refuse():
        raise OSError(errno.EMFILE, "too many open files")

    before = psutil.Process().num_fds()
    monkeypatch.setattr("trainer.reward.channel.selectors", SimpleNamespace(DefaultSelector=refuse))
    with pytest.raises(OSError, match="too many open files") as caught:
        open_program("import time; time.sleep(600)")
    # The error, which is still at hand, keeps nothing alive.
    assert left() == []
    del caught
    assert psutil.Process().num_fds() == before


def test_a_listener_that_fails_at_the_first_line_leaves_no_process(open_program):
    class Log:
        def sent(self, line):
            raise RuntimeError(line)

    with pytest.raises(RuntimeError, match="protocol"):
        open_program("import time; time.sleep(600)", exchange=Log())
    assert left() == []
