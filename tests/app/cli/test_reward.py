from __future__ import annotations


def test_every_line_of_the_conversation_is_shown(retrograd, project):
    done = retrograd("reward", "test", project(answer="5"), "--limit", "2")
    assert done.returncode == 0, done.stderr
    sent = [line for line in done.stdout.splitlines() if line.startswith("→")]
    received = [line for line in done.stdout.splitlines() if line.startswith("←")]
    assert len(sent) == len(received) == 2 * 4
    assert '"prompt": "2+3?"' in sent[0]
    assert '"completion": "5"' in sent[0]
    assert '"completion": ""' in sent[2]
    assert '"prompt": "4+4?"' in sent[4]
    assert '"reward": 1.0' in received[0]
    assert "8 answers scored, rewards from 0 to 1." in done.stdout
    assert "stderr:\nscored\n" in done.stdout


def test_a_program_that_cannot_tell_answers_apart_is_pointed_out(retrograd, project):
    done = retrograd("reward", "test", project())
    assert done.returncode == 0, done.stderr
    assert "9 answers scored, rewards from 0 to 0." in done.stdout
    assert "Every answer got the same reward" in done.stdout


def test_a_program_that_prefers_something_to_the_right_answer_is_pointed_out(retrograd, project):
    backwards = (
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    print(json.dumps({'reward': len(json.loads(line)['completion'])}))\n"
    )
    done = retrograd("reward", "test", project(reward=backwards, answer="5"))
    assert "`answer` field" in done.stdout


def test_a_program_that_breaks_the_protocol_ends_with_its_line_and_status_1(retrograd, project):
    done = retrograd("reward", "test", project(reward="print('loading \\x1b[31m model')"))
    assert done.returncode == 1
    assert "loading" in done.stderr
    assert "\x1b" not in done.stderr
    assert "Traceback" not in done.stderr
