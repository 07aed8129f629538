"""``retrograd serve-model`` as a real process, asked over HTTP as any client would."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from contextlib import contextmanager, suppress

import httpx
import psutil
import pytest

from trainer.chat.dataset import read_prompts
from trainer.chat.prompts import open_template, render_prompt
from trainer.rollout.answers import SamplingSettings
from trainer.rollout.engine import RolloutEngine

QUESTIONS = ("3 + 4 =", "10 + 7 =", "2 + 2 =")
GREEDY = {"temperature": 0, "max_tokens": 12}


@contextmanager
def serving(command, *arguments, env=None):
    """A server of the command, with a client whose base is its URL."""
    server = subprocess.Popen(
        [str(command), "serve-model", *map(str, arguments), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
    )
    try:
        line = server.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/v1", line)
        assert found, server.stderr.read()
        with httpx.Client(base_url=found[0], timeout=120) as client:
            yield server, client
    finally:
        if server.poll() is None:
            server.send_signal(signal.SIGINT)
        server.wait(30)
        server.stdout.close()
        server.stderr.close()


@pytest.fixture(scope="module")
def adapter(tiny, random_adapter):
    return random_adapter(tiny, rank=16)


@pytest.fixture(scope="module")
def served(retrograd_path, tiny, adapter):
    with serving(retrograd_path, tiny, "--adapter", adapter) as (_, client):
        yield client


def ask(client, model, question, **options):
    body = {"model": model, "messages": [{"role": "user", "content": question}], **GREEDY}
    reply = client.post("/chat/completions", json=body | options)
    assert reply.status_code == 200, reply.text
    return reply.json()


def content(reply):
    return reply["choices"][0]["message"]["content"]


def by_our_sampler(model, adapter, folder):
    """What retrograd itself answers at a temperature at which the likeliest token always wins."""
    lines = [json.dumps({"messages": [{"role": "user", "content": q}]}) for q in QUESTIONS]
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    settings = SamplingSettings(1e-4, 1.0, GREEDY["max_tokens"])
    with (
        RolloutEngine(
            model,
            ctx=128,
            concurrency=1,
            max_prompt_tokens=100,
            group_size=1,
            settings=settings,
            exact=False,
            threads=1,
        ) as engine,
        open_template(engine.vocabulary, model) as template,
    ):
        engine.swap_adapter(adapter)
        prompts = [
            render_prompt(line, template, engine.vocabulary)
            for line in read_prompts(folder / "prompts.jsonl")
        ]
        return [answer.text for [answer] in engine.sample(prompts, [[1]] * len(prompts))]


def test_base_and_adapter_are_listed(served):
    assert [model["id"] for model in served.get("/models").json()["data"]] == ["base", "adapter"]


@pytest.mark.parametrize("name", ["base", "adapter"])
def test_answers_are_those_of_retrograds_own_sampler(served, tiny, adapter, tmp_path, name):
    ours = by_our_sampler(tiny, adapter if name == "adapter" else None, tmp_path)
    assert [content(ask(served, name, question)) for question in QUESTIONS] == ours


def test_base_and_adapter_answer_differently(served):
    replies = [[content(ask(served, name, q)) for q in QUESTIONS] for name in ("base", "adapter")]
    assert replies[0] != replies[1]


def streamed(client, model, question):
    """The pieces of an answer as they come."""
    messages = [{"role": "user", "content": question}]
    body = {"model": model, "messages": messages, **GREEDY, "stream": True}
    with client.stream("POST", "/chat/completions", json=body) as reply:
        lines = [line.removeprefix("data: ") for line in reply.iter_lines() if line]
    data = [line for line in lines if not line.startswith(":")]
    assert data.pop() == "[DONE]"
    deltas = [json.loads(line)["choices"][0]["delta"] for line in data]
    return [delta["content"] for delta in deltas if delta.get("content")]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ('{"model": "base", ', 400),
        ('{"messages": ' + "[" * 5000 + "]" * 5000 + "}", 400),
        ('{"model": "gpt", "messages": [{"role": "user", "content": "x"}]}', 404),
        ('{"logprobs": true, "messages": [{"role": "user", "content": "x"}]}', 400),
        ('{"n": 3, "messages": [{"role": "user", "content": "x"}]}', 400),
    ],
)
def test_what_it_cannot_do_is_refused_as_openais_api_does(served, body, status):
    reply = served.post("/chat/completions", content=body)
    assert reply.status_code == status
    assert reply.json()["error"]["type"] == "invalid_request_error"


def test_nulls_count_as_left_out(served):
    assert content(ask(served, "base", "2 + 2 =", top_k=None, stop=None, n=None))


def test_an_answer_may_be_streamed(served):
    for name in ("base", "adapter"):
        pieces = streamed(served, name, QUESTIONS[0])
        assert "".join(pieces) == content(ask(served, name, QUESTIONS[0])) != ""


def test_openais_own_client_takes_it(served):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=str(served.base_url), api_key="none", max_retries=0)
    with client:
        reply = client.chat.completions.create(
            model="base", messages=[{"role": "user", "content": QUESTIONS[0]}], **GREEDY
        )
    assert reply.choices[0].message.content == content(ask(served, "base", QUESTIONS[0]))


def test_pages_of_the_web_cannot_use_it(served):
    """Neither by their own origin, nor under a name that leads to this machine."""
    stranger = {"Origin": "http://stranger.example"}
    reply = served.get("/models", headers=stranger)
    assert not [name for name in reply.headers if name.startswith("access-control")]
    body = json.dumps({"messages": [{"role": "user", "content": "hello"}]})
    plain = {**stranger, "Content-Type": "text/plain"}
    reply = served.post("/chat/completions", content=body, headers=plain)
    assert reply.status_code >= 400
    assert "choices" not in reply.text
    assert served.get("/models", headers={"Host": "stranger.example"}).status_code == 400
    port = served.base_url.port
    assert served.get("/models", headers={"Host": f"localhost:{port}"}).status_code == 200


def test_a_key_has_to_be_brought(retrograd_path, tiny, tmp_path):
    (tmp_path / "key").write_text("a-long-secret\n")
    with serving(retrograd_path, tiny, "--api-key-file", tmp_path / "key") as (_, client):
        assert client.get("/models").status_code == 401
        wrong = {"Authorization": "Bearer another"}
        assert client.get("/models", headers=wrong).status_code == 401
        right = {"Authorization": "Bearer a-long-secret"}
        assert client.get("/models", headers=right).status_code == 200


def test_the_environment_changes_nothing(retrograd_path, tiny, tmp_path):
    """llama-cpp-python's settings would be read from variables of these names."""
    (tmp_path / "config.json").write_text("{}")
    env = {"API_KEY": "x", "MODEL": "other.gguf", "N_CTX": "3", "CONFIG_FILE": "config.json"}
    with serving(retrograd_path, tiny, env=env) as (_, client):
        assert [model["id"] for model in client.get("/models").json()["data"]] == ["base"]
        assert content(ask(client, "base", QUESTIONS[0]))


# -- a run's file --------------------------------------------------------------------------------


def run_file(folder, config_text, model, *more):
    path = folder / "run.toml"
    text = config_text.replace('path = "base.gguf"', f'path = "{model}"')
    path.write_text("\n".join([text, *more]))
    return path


def test_a_run_is_served_with_its_adapter_and_variables(
    retrograd_path, config_text, random_llama, random_adapter, tmp_path
):
    template = (
        "{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}{{ ending }}<|bot|>"
    )
    model = random_llama(layers=1, template=template)
    config = run_file(
        tmp_path, config_text, model, "[model.template_variables]", 'ending = "abcdef"'
    )
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "adapter.gguf").write_bytes(random_adapter(model).read_bytes())
    with serving(retrograd_path, config) as (_, client):
        assert [m["id"] for m in client.get("/models").json()["data"]] == ["base", "adapter"]
        # <|user|>, h, i, <|end|>, the variable, <|bot|>
        assert ask(client, "adapter", "hi")["usage"]["prompt_tokens"] == 4 + 6 + 1


# -- what cannot work ----------------------------------------------------------------------------


def test_a_port_that_is_taken_is_named(retrograd, tiny):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = retrograd("serve-model", tiny, "--port", port)
    assert (result.returncode, result.stdout) == (1, "")
    assert f"Port {port} of 127.0.0.1 is taken. Name another one with --port" in result.stderr


def test_what_differs_from_training_is_pointed_out(
    retrograd_path, config_text, tiny, adapter, tmp_path
):
    merging = config_text.replace("[model]", "[model]\nmerge_system = true")
    config = run_file(tmp_path, merging, tiny)
    with serving(retrograd_path, config, "--adapter", adapter) as (server, _):
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0
        assert server.stderr.read() == (
            "The server does not merge system messages (model.merge_system = true): put that text "
            "into the first user message.\n"
        )


# -- its end -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_well_also_in_the_middle_of_an_answer(
    retrograd_path, random_llama, number
):
    model = random_llama(layers=4, width=256, ff_width=512, context=8192)
    with serving(retrograd_path, model, "--ctx", 8192) as (server, client):
        begun = threading.Event()

        def ask_at_length():
            begun.set()
            messages = [{"role": "user", "content": "x"}]
            # Without its end token the model goes on until it has no room.
            bias = {"logit_bias": {"257": -100.0}, "max_tokens": 8000}
            body = {"messages": messages, **bias}
            # What comes of it does not matter: the server may have ended, or the answer.
            with suppress(httpx.HTTPError):
                client.post("/chat/completions", json=body)

        asking = threading.Thread(target=ask_at_length)
        asking.start()
        begun.wait()
        time.sleep(0.5)
        children = psutil.Process(server.pid).children(recursive=True)
        server.send_signal(number)
        assert server.wait(20) == 0
        asking.join()
        assert not [child for child in children if child.is_running()]
        assert "Traceback" not in server.stderr.read()


# -- as a judge ----------------------------------------------------------------------------------

JUDGE = """
[grpo.judge]
type = "ruler"
base_url = "{url}"
model = "base"
temperature = 0
max_retries = 0
timeout_secs = 500
"""


@pytest.mark.full
def test_the_judge_of_a_run_can_ask_it(retrograd_path, retrograd, config_text, smollm2, tmp_path):
    """SmolLM2 is too small to judge, so its reply need not be a verdict; but it replies. What it
    writes has no end of its own, so that the context sets one."""
    answers = [{"completion": "4", "label": 1}, {"completion": "banana", "label": 0}]
    question = {"messages": [{"role": "user", "content": "What is 2 + 2?"}], "answers": answers}
    (tmp_path / "answers.jsonl").write_text(json.dumps(question))
    with serving(retrograd_path, smollm2, "--ctx", 1024) as (_, client):
        text = config_text.replace("[grpo]\n", "[grpo]\njudge_weight = 0.35\n")
        config = tmp_path / "judged.toml"
        config.write_text(text + JUDGE.format(url=str(client.base_url).rstrip("/")))
        result = retrograd("judge", "test", config, "--answers", tmp_path / "answers.jsonl")
    assert "← " in result.stdout, "a reply came"
    assert result.returncode in (0, 1), result.stderr
    if result.returncode:
        assert re.search("! its reply (cannot be used|was cut)", result.stdout)


@pytest.mark.full
def test_smollm2_is_served_as_retrograd_samples_it(retrograd_path, smollm2, tmp_path):
    """To the first words: two tokens that are nearly as likely may be told apart by rounding."""
    ours = by_our_sampler(smollm2, None, tmp_path)
    with serving(retrograd_path, smollm2) as (_, client):
        theirs = [content(ask(client, "base", question)) for question in QUESTIONS]
        pieces = streamed(client, "base", QUESTIONS[0])
    assert [text[:15] for text in theirs] == [text[:15] for text in ours]
    assert len(pieces) > 3, "piece by piece"
    assert "".join(pieces) == theirs[0]
