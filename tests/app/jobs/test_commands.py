"""On a server with a token, uploads run only what the operator allowed."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from app.jobs.commands import Trust
from app.jobs.keys import Named
from app.jobs.workspace import Found
from app.settings import ServerSettings


def trust(*allowed, **settings):
    return Trust.of(ServerSettings(token=SecretStr("t"), allow_command=allowed, **settings))


def refusal(rule, *words, **states):
    """What ``rule`` says of a command in which some words, by position, are files."""
    raw = {"grpo": {"reward_command": list(words)}}
    key = "grpo.reward_command"
    found = [Found(Named(key, words[int(n[1:])], int(n[1:])), state) for n, state in states.items()]
    return rule.refusals(raw, found).get(key, "")


def test_without_a_token_everything_is_allowed():
    assert refusal(Trust.of(ServerSettings()), "python3", "-c", "print()") == ""


def test_the_operator_may_trust_uploads():
    rule = trust(trust_uploads=True)
    assert refusal(rule, "python3", "reward.py", _1="uploaded") == ""
    assert rule.refused_upload("reward.py") == ""


def test_a_command_that_nobody_allowed_is_refused_with_the_way_out():
    words = refusal(trust("score"), "python3", "reward.py", _1="copied")
    assert "the operator has not allowed (allowed: score)" in words
    assert words.endswith(
        "to allow it, start the server with --allow-command 'python3 reward.py', or with "
        "--trust-uploads for every program"
    )
    assert words.count("start the server") == 1


def test_an_allowed_interpreter_runs_programs_of_the_workspace():
    rule = trust("python3")
    assert refusal(rule, "python3", "reward.py", _1="copied") == ""
    assert refusal(rule, "python3", "reward.py", "--strict", "words.txt", _1="copied") == ""


@pytest.mark.parametrize(
    ("words", "states"),
    [
        (("python3", "reward.py"), {"_1": "uploaded"}),
        (("python3", "-c", "import os"), {}),
        (("python3", "-m", "http.server"), {}),
        (("python3", "-", "reward.py"), {"_2": "copied"}),
        (("/tmp/python3", "reward.py"), {"_1": "copied"}),
        (("python3", "reward.txt"), {"_1": "word"}),
    ],
)
def test_an_allowed_interpreter_runs_nothing_else(words, states):
    assert refusal(trust("python3"), *words, **states) != ""


def test_an_allowed_beginning_takes_whatever_arguments_follow():
    rule = trust("python3 rewards/score.py")
    assert (
        refusal(rule, "python3", "rewards/score.py", "--x", "my.txt", _1="copied", _3="uploaded")
        == ""
    )
    assert refusal(rule, "python3", "rewards/other.py", _1="copied") != ""
    assert refusal(rule, "python3", "rewards/score.py", _1="uploaded") != "", "not the operator's"


def test_after_an_option_of_the_beginning_comes_a_program_of_the_workspace():
    assert refusal(trust("python3 -u"), "python3", "-u", "-c", "1") != ""
    assert refusal(trust("python3 -u"), "python3", "-u", "reward.py", _2="copied") == ""


def test_no_program_may_lie_beside_an_allowed_one():
    """Python looks for modules in the folder of the program first."""
    rule = trust("python3")
    assert "no programs" in rule.refused_upload("json.py")
    assert rule.refused_upload("prompts.JSONL") == ""


def test_no_key_of_the_server_goes_where_an_upload_says():
    raw = {"grpo": {"judge": {"type": "ruler", "base_url": "http://x/v1", "model": "m"}}}
    assert "a key of the server's environment" in trust("python3").refusals(raw, [])["grpo.judge"]
    assert trust(trust_uploads=True).refusals(raw, []) == {}
