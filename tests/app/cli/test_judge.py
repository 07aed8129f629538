from __future__ import annotations

import json
import os

import pytest
from judge_server import KEY, JudgeServer, by_quality, says

JUDGE = """
[grpo.judge]
type = "ruler"
base_url = "{url}"
model = "judge-1"
"""

COMMAND = """
[grpo.judge]
type = "command"
command = ["python3", "judge.py"]
"""

PROGRAM = """
import json, sys
for line in sys.stdin:
    answers = json.loads(line)["answers"]
    scores = [{"id": a["id"], "score": min(1, len(a["completion"]) / 20)} for a in answers]
    print(json.dumps({"scores": scores}))
"""


@pytest.fixture
def serve():
    started = []

    def start(behave):
        started.append(JudgeServer(behave))
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.fixture
def judge_test(retrograd, project, config_text, tmp_path):
    """Runs the command on a configuration with a judge and the lines of a file of answers."""

    def run(section, *lines, arguments=(), key=KEY):
        with_weight = config_text.replace("[grpo]\n", "[grpo]\njudge_weight = 0.35\n")
        config = project(with_weight + section)
        answers = tmp_path / "answers.jsonl"
        answers.write_text("\n".join(json.dumps(line) for line in lines))
        environment = {**os.environ, "OPENAI_API_KEY": key, "NO_PROXY": "127.0.0.1"}
        command = ["judge", "test", config, "--answers", answers, *arguments]
        return retrograd(*command, env=environment)

    return run


def line(question, *answers):
    return {"messages": [{"role": "user", "content": question}], "answers": answers}


def labelled(completion, label):
    return {"completion": completion, "label": label}


RIGHT = line("2 + 3?", labelled("quality 2", 0), labelled("quality 8", 1), "quality 5")
WRONG = line("4 + 4?", labelled("quality 6", 1), labelled("quality 3", 2), labelled("quality 1", 3))


def test_requests_replies_verdicts_and_their_agreement_are_shown(judge_test, serve):
    server = serve(by_quality)
    done = judge_test(JUDGE.format(url=server.url), RIGHT, WRONG)
    assert done.returncode == 0, done.stderr
    out = done.stdout
    assert "group 1 (line 1 of the prompts), request 1 of 1 (" in out
    assert "→ You are an impartial judge." in out
    assert "→ 2 + 3?" in out
    assert '← {"scores": [{"id": "A", "explanation": "about A", "score": 0.' in out
    verdicts = out[out.index("\nLine 1: 2 + 3?") : out.index("\nLine 2: 4 + 4?")]
    rows = [row.split() for row in verdicts.splitlines() if "quality" in row]
    assert rows == [
        ["0.800", "1", "quality", "8"],
        ["0.500", "-", "quality", "5"],
        ["0.200", "0", "quality", "2"],
    ]
    assert "judge/requests = 2" in out
    assert "0.00 in the mean of 2 groups; lowest -1.00, on line 2." in out
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in out + done.stderr


def test_it_needs_neither_the_model_nor_a_reward(judge_test, serve, tmp_path):
    done = judge_test(JUDGE.format(url=serve(by_quality).url), RIGHT)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "base.gguf").exists()
    assert "scored" not in done.stderr


def test_a_group_without_verdict_ends_with_its_reason_and_status_1(judge_test, serve):
    server = serve(lambda r: says(f"\x1b[31mno {KEY}"))
    done = judge_test(JUDGE.format(url=server.url) + "max_retries = 0\n", RIGHT)
    assert done.returncode == 1
    assert "← ␛[31mno [key]" in done.stdout
    assert "! its reply cannot be used: it is not a JSON object" in done.stdout
    assert "no verdict: its reply cannot be used" in done.stdout
    assert "\x1b" not in done.stdout
    assert KEY not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_cache_answers_until_it_is_told_not_to(judge_test, serve):
    server = serve(by_quality)
    section = JUDGE.format(url=server.url) + 'cache_path = "cache.jsonl"\n'
    for arguments, told, requests in [
        ((), "s)", 1),
        ((), "(from the cache)", 1),
        (("--fresh",), "s)", 2),
    ]:
        done = judge_test(section, RIGHT, arguments=arguments)
        assert done.returncode == 0, done.stderr
        assert f"request 1 of 1 {told}" in done.stdout or told == "s)"
        assert len(server.requests) == requests


def test_a_limit_takes_the_first_lines(judge_test, serve):
    server = serve(by_quality)
    judge_test(JUDGE.format(url=server.url), RIGHT, WRONG, arguments=["--limit", "1"])
    assert len(server.requests) == 1


def test_a_program_is_shown_its_lines_too(judge_test, tmp_path):
    (tmp_path / "judge.py").write_text(PROGRAM)
    done = judge_test(COMMAND, line("?", labelled("short", 1), labelled("a longer answer", 2)))
    assert done.returncode == 0, done.stderr
    assert '→ {"prompt": "?"' in done.stdout
    assert '← {"scores": [' in done.stdout
    assert "1.00 in the mean of 1 group" in done.stdout


def test_labels_that_rank_nothing_are_pointed_out(judge_test, serve):
    done = judge_test(JUDGE.format(url=serve(by_quality).url), line("?", "quality 1", "quality 2"))
    assert "so none can agree" in done.stdout


@pytest.mark.parametrize(
    ("section", "lines", "words"),
    [
        ("", [RIGHT], "has no effect without a judge"),
        (COMMAND, [{"messages": []}], "answers.jsonl:1: "),
        (COMMAND.replace("python3", "no-such"), [RIGHT], 'there is no command "no-such"'),
        (
            JUDGE.format(url="http://127.0.0.1:9") + 'api_key_env = "NO_SUCH_KEY"',
            [RIGHT],
            "The environment variable NO_SUCH_KEY",
        ),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_asked(judge_test, section, lines, words):
    done = judge_test(section, *lines)
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_without_a_judge_has_none_to_try(retrograd, project, tmp_path):
    (tmp_path / "answers.jsonl").write_text(json.dumps(RIGHT))
    done = retrograd("judge", "test", project(), "--answers", tmp_path / "answers.jsonl")
    assert done.returncode == 2
    assert "describes no judge: add the section [grpo.judge]" in done.stderr
