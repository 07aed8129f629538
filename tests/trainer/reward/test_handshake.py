import sys
import time

import pytest
from reward_programs import ONE_BY_ONE, rewards, score_error

from trainer.reward.program import open_reward_program


def test_oneshot_program_is_found_long_before_the_timeout(open_program, requests_of):
    source = """
    import json, sys
    for line in sys.stdin.read().splitlines():
        print(json.dumps({"reward": len(json.loads(line)["completion"])}))
    """
    started = time.monotonic()
    message = score_error(open_program(source, timeout=300), requests_of("a"))
    assert time.monotonic() - started < 10
    assert "waits for the end of its input instead of answering the handshake" in message
    assert 'Set reward_mode = "oneshot"' in message


def test_program_that_answers_the_handshake_with_a_reward(open_program, requests_of):
    source = """
    import sys
    for line in sys.stdin:
        print('{"reward": 0.5}', flush=True)
    """
    message = score_error(open_program(source), requests_of("a"))
    assert 'The line: {"reward": 0.5}' in message
    assert 'reward_mode = "oneshot"' in message


def test_program_that_fails_on_the_handshake(open_program, requests_of):
    source = """
    import json, sys
    for line in sys.stdin:
        print(json.loads(line)["completion"])
    """
    message = score_error(open_program(source), requests_of("a"))
    reason, _, advice = message.partition("KeyError: 'completion'\n")
    assert "ended (exit status 1) before it answered the handshake.\nIts stderr" in reason
    assert advice == 'If it took the handshake for a request, it needs reward_mode = "oneshot".'


def test_another_version_is_named(open_program, requests_of):
    source = ONE_BY_ONE.replace("retrograd-reward/1", "retrograd-reward/2")
    assert '"retrograd-reward/2"' in score_error(open_program(source), requests_of("a"))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a process awaits")
def test_slow_start_is_not_suspected(tmp_path, open_program, requests_of):
    source = "import time; open('starts', 'a').write('.'); time.sleep(1.8)\n" + ONE_BY_ONE
    with open_program(source, timeout=4) as program:
        assert rewards(program.score(requests_of("a"))) == [1]
    assert (tmp_path / "starts").read_text() == "."


def test_relay_before_a_slow_start_is_tried_but_not_refused(tmp_path, open_program, requests_of):
    # The relay waits on its input with the processor idle, as a oneshot program would.
    slow = "import time; open('starts', 'a').write('.'); time.sleep(1.8)\n" + ONE_BY_ONE
    (tmp_path / "slow.py").write_text(slow)
    with open_program("#!/bin/sh\ncat -u | python3 slow.py\n", timeout=5) as program:
        assert rewards(program.score(requests_of("a"))) == [1]
    assert (tmp_path / "starts").read_text() == ".."


def test_silence_ends_at_the_timeout_with_advice(open_program, requests_of):
    message = score_error(
        open_program("import time; time.sleep(600)", timeout=1.5), requests_of("a")
    )
    assert "did not answer the handshake within 1.5 s" in message
    assert 'reward_mode = "oneshot"' in message


def test_print_before_the_handshake_is_named(open_program, requests_of):
    program = open_program("print('loading model...', flush=True)\n" + ONE_BY_ONE)
    message = score_error(program, requests_of("a"))
    assert "The line: loading model..." in message
    assert "stderr" in message


def test_wrong_file_name_is_told_by_stderr(tmp_path, requests_of):
    program = open_reward_program(
        ["python3", "rewrad.py"],
        mode="persistent",
        timeout_seconds=20,
        folder=tmp_path,
        judge_allowed=False,
    )
    message = score_error(program, requests_of("a"))
    ending, _, reason = message.partition("\nIts stderr ends with:\n")
    assert ending.endswith("ended (exit status 2) before it answered the handshake.")
    assert "can't open file" in reason.splitlines()[0]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is unread")
def test_failing_before_the_handshake_is_read_has_nothing_to_do_with_it(open_program, requests_of):
    message = score_error(open_program("import no_such_module"), requests_of("a"))
    assert message.endswith("ModuleNotFoundError: No module named 'no_such_module'")
    assert "oneshot" not in message


def test_ending_well_without_a_word_gets_the_advice(open_program, requests_of):
    message = score_error(open_program("import sys; sys.stdin.readline()"), requests_of("a"))
    assert "ended (exit status 0) before it answered the handshake. In persistent mode" in message
    assert 'needs reward_mode = "oneshot".\nIts stderr is empty.' in message
