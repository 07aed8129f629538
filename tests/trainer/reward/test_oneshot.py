import errno
import time
from types import SimpleNamespace

import pytest
from left_over import left
from reward_programs import rewards, score_error

LENGTHS = """
import json, sys
for line in sys.stdin.read().splitlines():
    print(json.dumps({"reward": len(json.loads(line)["completion"])}))
"""


@pytest.fixture
def oneshot(open_program):
    def open_(source, **options):
        return open_program(source, mode="oneshot", **options)

    return open_


def printing(text, end="SystemExit(0)"):
    return f"import sys\nsys.stdin.read()\nsys.stdout.write({text!r})\nraise {end}\n"


def test_program_that_reads_everything_first(oneshot, requests_of):
    with oneshot(LENGTHS) as program:
        assert rewards(program.score(requests_of("a", "bb", "ccc"))) == [1, 2, 3]


def test_each_batch_has_its_own_process(oneshot, requests_of):
    source = "import os, sys\nfor line in sys.stdin: print('{\"reward\": %d}' % os.getpid())"
    with oneshot(source) as program:
        pids = rewards(program.score(requests_of("a"))) + rewards(program.score(requests_of("b")))
        assert left() == []
    assert pids[0] != pids[1]


def test_request_has_no_extra_fields(oneshot, requests_of):
    source = """
    import json, sys
    for line in sys.stdin:
        extra = set(json.loads(line)) - {"prompt", "completion", "messages", "metadata"}
        print(json.dumps({"reward": len(extra)}))
    """
    with oneshot(source) as program:
        assert rewards(program.score(requests_of("a"))) == [0]


def test_answers_while_requests_are_still_sent(oneshot, requests_of):
    source = """
    import json, sys
    for line in sys.stdin:
        print(json.dumps({"reward": len(json.loads(line)["completion"]), "pad": "y" * 20_000}))
    """
    with oneshot(source) as program:
        assert rewards(program.score(requests_of(*["x" * 20_000] * 64))) == [20_000] * 64


def test_large_batch_answered_at_the_end(oneshot, requests_of):
    with oneshot(LENGTHS) as program:
        assert rewards(program.score(requests_of(*["x" * 20_000] * 64))) == [20_000] * 64


def test_last_line_may_lack_its_newline(oneshot, requests_of):
    with oneshot(printing('{"reward": 1}\n{"reward": 2}')) as program:
        assert rewards(program.score(requests_of("a", "b"))) == [1, 2]


def test_program_need_not_read_its_input(oneshot, requests_of):
    with oneshot("""print('{"reward": 1}\\n' * 64, end="")""") as program:
        assert rewards(program.score(requests_of(*["x" * 20_000] * 64))) == [1] * 64


def test_progress_and_stderr(oneshot, requests_of):
    seen = []
    with oneshot("import sys; sys.stderr.write('busy')\n" + LENGTHS) as program:
        program.score(requests_of("a", "b"), lambda done, total: seen.append((done, total)))
        assert program.stderr_tail() == "busy"
        assert program.score([]) == []
    assert seen == [(1, 2), (2, 2)]


def test_what_each_start_says_on_stderr_is_told(oneshot, requests_of):
    said = []
    with oneshot(
        "import sys; sys.stderr.write('busy')\n" + LENGTHS, on_stderr=said.append
    ) as program:
        program.score(requests_of("a"))
        program.score(requests_of("b"))
    assert said == ["busy", "busy"]


def test_stderr_flood_does_not_block(oneshot, requests_of):
    with oneshot("import sys; sys.stderr.write('x' * 2_000_000)\n" + LENGTHS) as program:
        assert rewards(program.score(requests_of("a"))) == [1]


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ("", "sent 0 replies for 2 requests"),
        ('{"reward": 1}\n', "sent 1 replies for 2 requests"),
        ('{"reward": 1}\n' * 3, "sent more than the 2 replies that were asked for"),
    ],
)
def test_wrong_count_is_named(oneshot, requests_of, output, problem):
    assert problem in score_error(oneshot(printing(output)), requests_of("a", "b"))


@pytest.mark.parametrize(
    "line", ["hello", "", '{"debug": 1}', '{"reward": null}', '{"reward": NaN}']
)
def test_bad_line_is_shown_with_prompt_and_answer(oneshot, requests_of, line):
    source = printing('{"reward": 1}\n' + line + "\n")
    message = score_error(oneshot(source), requests_of("first", "second"))
    assert f"The line: {line}" in message
    assert 'Prompt (line 7 of the prompts): "What is 2 + 2?". Answer: "second"' in message


def test_exit_status_must_be_zero(oneshot, requests_of):
    message = score_error(
        oneshot(printing('{"reward": 1}\n', end="SystemExit(2)")), requests_of("a")
    )
    assert "ended (exit status 2) after it scored 1 of 1 answers" in message


def test_crash_is_named_before_what_it_left_unsaid(oneshot, requests_of):
    source = printing('{"reward": 1}\n{"rew', end="ValueError('no such table')")
    message = score_error(oneshot(source), requests_of("a", "b"))
    assert "ended (exit status 1)" in message
    assert "no such table" in message


def test_hang_ends_at_the_timeout(oneshot, requests_of):
    started = time.monotonic()
    message = score_error(oneshot("import time; time.sleep(600)", timeout=0.5), requests_of("a"))
    assert "scored 0 of 1 answers and did not end within 0.5 s" in message
    assert time.monotonic() - started < 4


def test_program_that_answers_but_does_not_end(oneshot, requests_of):
    source = LENGTHS + "import os, time; sys.stdout.flush(); os.close(1); time.sleep(600)"
    message = score_error(oneshot(source, timeout=1.5), requests_of("a"))
    assert "scored 1 of 1 answers and did not end within 1.5 s" in message


def test_children_it_leaves_are_ended(oneshot, requests_of):
    source = LENGTHS + "import os, subprocess; subprocess.Popen(['sleep', '600'])"
    with oneshot(source + "; sys.stdout.flush(); os._exit(0)") as program:
        assert rewards(program.score(requests_of("a"))) == [1]


def test_shell_wrapper_with_grandchildren_times_out(oneshot, requests_of):
    script = "#!/bin/sh\nsleep 600 &\npython3 -c 'import time; time.sleep(600)' &\nwait\n"
    assert "within 0.3 s" in score_error(oneshot(script, timeout=0.3), requests_of("a"))


def test_a_channel_that_cannot_be_opened_leaves_no_process(oneshot, requests_of, monkeypatch):
    def refuse():
        raise OSError(errno.EMFILE, "too many open files")

    with oneshot("import time; time.sleep(600)") as program:
        monkeypatch.setattr(
            "trainer.reward.channel.selectors", SimpleNamespace(DefaultSelector=refuse)
        )
        with pytest.raises(OSError, match="too many open files"):
            program.score(requests_of("a"))
        assert left() == []
