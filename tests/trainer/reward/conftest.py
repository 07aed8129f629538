"""Real reward programs in a temporary folder, and a check that none outlives its test."""

import json
import shutil
import textwrap

import pytest
from left_over import nothing_left

from trainer.chat.messages import Message, PromptLine
from trainer.reward.program import RewardRequest, open_reward_program

# What a well-behaved persistent program does before and around its scoring.
GREET = """\
import json, sys, time
json.loads(sys.stdin.readline())
print(json.dumps({"protocol": "retrograd-reward/1"}), flush=True)

def reply(request, reward=1.0, **extra):
    echo = {name: request[name] for name in ("_retrograd_batch", "_retrograd_index")}
    print(json.dumps({"reward": reward, **extra, **echo}), flush=True)
"""

# A whole batch is read before `answer(requests)` runs; then its end is echoed.
BATCHES = """
requests = []
for line in sys.stdin:
    message = json.loads(line)
    if "_retrograd_batch_end" not in message:
        requests.append(message)
        continue
    answer(requests)
    requests = []
    print(line.strip(), flush=True)
"""


nothing_left_behind = pytest.fixture(autouse=True)(nothing_left)


@pytest.fixture
def requests_of():
    return make_requests


def make_requests(*completions, **metadata):
    messages = (
        Message("system", "Be brief."),
        Message("user", "Hi"),
        Message("assistant", "Hello"),
        Message("user", "What is 2 + 2?"),
    )
    prompt = PromptLine(line=7, messages=messages, metadata=metadata, rubric=None, key="k")
    return [RewardRequest(prompt, completion) for completion in completions]


@pytest.fixture
def open_program(tmp_path):
    """Writes a program's source to reward.py and opens it; a shell script when it has `#!`."""

    def open_(source, mode="persistent", timeout=20.0, judge=False, exchange=None, on_stderr=None):
        source = textwrap.dedent(source)
        path = tmp_path / ("reward.sh" if source.startswith("#!") else "reward.py")
        path.write_text(source)
        path.chmod(0o755)
        command = ["./reward.sh"] if path.suffix == ".sh" else ["python3", "reward.py"]
        return open_reward_program(
            command,
            mode=mode,
            timeout_seconds=timeout,
            folder=tmp_path,
            judge_allowed=judge,
            exchange=exchange,
            on_stderr=on_stderr,
        )

    return open_


@pytest.fixture
def answering(open_program):
    """A persistent program from the body of `def answer(requests)`."""

    def open_(body, **options):
        function = "def answer(requests):\n" + textwrap.indent(textwrap.dedent(body), "    ")
        return open_program(GREET + function + BATCHES, **options)

    return open_


@pytest.fixture(scope="session")
def chat_scorer(tmp_path_factory):
    """A trained decoder with one label and a chat template; not to be changed."""
    import reward_models

    return reward_models.train_chat_scorer(tmp_path_factory.mktemp("chat-scorer"))


@pytest.fixture(scope="session")
def pair_scorer(tmp_path_factory):
    """A trained encoder with two labels that reads pairs; not to be changed."""
    import reward_models

    return reward_models.train_pair_scorer(tmp_path_factory.mktemp("pair-scorer"))


@pytest.fixture
def copied(tmp_path):
    """A copy of a model's folder, with keys of its config.json changed."""

    def copy(folder, config=None):
        to = shutil.copytree(folder, tmp_path / "copy")
        file = to / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | (config or {})))
        return to

    return copy
