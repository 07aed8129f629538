"""The examples' own files, and scripts of theirs as modules."""

import importlib.util
import json
import subprocess
import sys

import pytest


@pytest.fixture(scope="session")
def examples(root):
    return root / "examples"


@pytest.fixture(scope="session")
def make(examples):
    """The module `examples/tiny/make.py`."""
    spec = importlib.util.spec_from_file_location("tiny_make", examples / "tiny" / "make.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up here
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def converse():
    """Run a program on lines of JSON until it ends by itself; return its lines."""

    def run(program, *lines):
        sent = "".join(json.dumps(line) + "\n" for line in lines)
        command = [sys.executable, program.name]
        done = subprocess.run(
            command, input=sent, capture_output=True, encoding="utf-8", cwd=program.parent
        )
        assert (done.returncode, done.stderr) == (0, "")
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


@pytest.fixture
def scores(converse):
    """The replies of a reward program to ``completions`` of one question, persistent mode."""

    def run(program, right, *completions):
        hello = {"protocol": "retrograd-reward/1"}
        end = {"_retrograd_batch_end": 1}
        requests = [
            {
                "prompt": "3 + 4 = ?",
                "completion": completion,
                "messages": [{"role": "user", "content": "3 + 4 = ?"}],
                "metadata": {"answer": right},
                "_retrograd_batch": 1,
                "_retrograd_index": index,
            }
            for index, completion in enumerate(completions)
        ]
        first, *replies, last = converse(program, hello, *requests, end)
        assert (first, last) == (hello, end)
        assert [r["_retrograd_batch"] for r in replies] == [1] * len(completions)
        assert [r["_retrograd_index"] for r in replies] == list(range(len(completions)))
        return replies

    return run
