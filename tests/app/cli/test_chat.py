from __future__ import annotations

import inspect
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from app.chat.conversations import USUAL_ANSWER
from app.cli.chat import chat
from app.cli.main import app
from trainer.conversation import Partner
from trainer.rollout.answers import SamplingSettings
from trainer.rollout.engine import RolloutEngine

QUESTION = "Add 2 and 3."


def sampled(model, seed, *, adapter=None, limit=24, ctx=256, question=QUESTION):
    """The answer of the sampler that runs are trained with."""
    with Partner(model) as partner:
        prompt = partner.conversation().prompt(question)
    with RolloutEngine(
        model,
        ctx=ctx,
        concurrency=1,
        max_prompt_tokens=64,
        group_size=1,
        settings=SamplingSettings(1.0, 1.0, limit),
        exact=False,
        threads=1,
    ) as engine:
        engine.swap_adapter(adapter)
        return engine.sample([prompt], [[seed]])[0][0].text


@pytest.fixture(scope="module")
def adapter(tiny, tmp_path_factory):
    """Random factors that turn the tiny model's answers over."""
    import numpy as np

    from trainer.gguf.adapter import write_adapter
    from trainer.gguf.file import GgufFile

    rng = np.random.default_rng(0)
    factors = {}
    for name, info in GgufFile(tiny).tensors.items():
        if name.endswith(("attn_q.weight", "ffn_down.weight")):
            rows, columns = info.shape
            factors[f"{name}.lora_a"] = rng.standard_normal((4, columns), np.float32)
            factors[f"{name}.lora_b"] = rng.standard_normal((rows, 4), np.float32) * 0.05
    path = tmp_path_factory.mktemp("adapter") / "adapter.gguf"
    write_adapter(path, factors, architecture="llama", alpha=8.0, dtype="f32")
    return path


def test_a_script_gets_an_answer_for_each_line_and_nothing_else(retrograd, tiny):
    talk = f"{QUESTION}\n\n/reset\n{QUESTION}\n/seed 5\n/reset\n{QUESTION}\n"
    done = retrograd("chat", tiny, "--seed", "5", input=talk)
    assert done.returncode == 0, done.stderr
    first, second = sampled(tiny, 5), sampled(tiny, 6)
    assert done.stdout == f"{first}\n{second}\n{first}\n"
    begun = "base tiny.gguf: a context of 256 tokens, seed 5.\n"
    assert done.stderr == begun + "The conversation begins anew.\n" * 2


def test_base_and_adapter_answer_one_under_the_other_with_the_same_seed(retrograd, tiny, adapter):
    options = ("--adapter", adapter, "--compare", "--seed", "9", "--max-new-tokens", "24")
    done = retrograd("chat", tiny, *options, input=f"{QUESTION}\n")
    assert done.returncode == 0, done.stderr
    base, adapted = sampled(tiny, 9), sampled(tiny, 9, adapter=adapter)
    assert base != adapted
    from app.text import neutralise

    adapted = neutralise(adapted, keep_newlines=True)
    assert done.stdout == f"{base}\n{adapted}\n"
    begun, *headings = done.stderr.splitlines()
    assert begun.startswith("base tiny.gguf and adapter adapter.gguf: a context of ")
    assert begun.endswith(" tokens, seed 9.")
    assert headings == ["base tiny.gguf", "adapter adapter.gguf"]


def test_what_was_said_before_counts_and_a_system_message_begins_anew(retrograd, tiny):
    talk = f"{QUESTION}\nAnd 1?\n/system Be brief.\nAnd 1?\n/exit\nnobody reads this\n"
    done = retrograd("chat", tiny, "--temperature", "0", input=talk)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 3
    assert "The conversation begins anew with a system message." in done.stderr


def test_the_toml_file_of_a_run_names_its_model_its_adapter_and_its_context(
    retrograd, tiny, adapter, project, config_text, tmp_path
):
    text = config_text.replace("base.gguf", str(tiny)).replace("ctx = 64", "ctx = 48")
    config = project(text)
    refused = retrograd("chat", config, input=f"{QUESTION}\n")
    assert refused.returncode == 2
    assert "adapter.gguf: there is no such file yet. Train it" in refused.stderr

    (tmp_path / "out").mkdir()
    (tmp_path / "out/adapter.gguf").write_bytes(adapter.read_bytes())
    done = retrograd("chat", config, "--compare", "--seed", "9", input=f"{QUESTION}\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{sampled(tiny, 9)}\n")
    assert done.stderr.endswith("\nbase tiny.gguf\nadapter adapter.gguf\n")
    config = project(text.replace("[training]", 'kind = "model"\n\n[training]'))
    (tmp_path / "out/adapter.gguf").rename(tmp_path / "out/adapter.adapter.gguf")
    done = retrograd("chat", config, input="word " * 60 + "\n")
    assert done.returncode == 2
    assert "the context of 48 leaves no room for an answer" in done.stderr


def test_a_run_that_writes_a_model_has_its_adapter_beside_it(
    retrograd, tiny, adapter, project, config_text, tmp_path
):
    text = config_text.replace("base.gguf", str(tiny))
    config = project(text.replace('path = "out/adapter.gguf"', 'path = "m.gguf"\nkind = "model"'))
    refused = retrograd("chat", config, input=f"{QUESTION}\n")
    assert "m.adapter.gguf: there is no such file yet" in refused.stderr
    (tmp_path / "m.adapter.gguf").write_bytes(adapter.read_bytes())
    done = retrograd("chat", config, "--compare", "--seed", "9", input=f"{QUESTION}\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{sampled(tiny, 9)}\n")
    assert done.stderr.endswith("\nbase tiny.gguf\nadapter m.adapter.gguf\n")


def test_without_a_template_each_text_is_gone_on_from_as_it_is(retrograd, endless):
    options = ("--raw", "--temperature", "0", "--max-new-tokens", "6")
    done = retrograd("chat", endless, *options, input="Add 2\nAdd 2\n")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip()) >= 6
    _, *notes = done.stderr.splitlines()
    assert notes == 2 * ["(cut off after 6 tokens; --max-new-tokens allows more)"]


def test_a_model_without_a_template_is_refused_with_the_way_out(retrograd, random_llama):
    done = retrograd("chat", random_llama(layers=1, template=""), input="Add 2\n")
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "the model has no chat template" in said
    assert "--raw lets it go on from a text as it is" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["{tiny}", "--adapter", "gone.gguf"], "gone.gguf: there is no such adapter file."),
        (["{tiny}", "--adapter", "{other}"], "the adapter was made for another model"),
        (["{tiny}", "--compare"], "--compare needs an adapter"),
        (["{tiny}", "--ctx", "9000"], "ctx = 9000 is longer than the 256 tokens"),
        (["{tiny}", "--top-p", "0"], "--top-p 0: must be above 0 and at most 1."),
        (["{tiny}", "--raw", "--system", "x"], "--system has no place with --raw"),
    ],
)
def test_what_cannot_be_talked_to_is_refused_with_the_reason(
    retrograd, tiny, other_adapter, tmp_path, options, said
):
    given = [o.format(tiny=tiny, other=other_adapter) for o in options]
    done = retrograd("chat", *given, input=f"{QUESTION}\n", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert said in " ".join(done.stderr.split())
    assert done.stdout == ""


@pytest.fixture(scope="module")
def other_adapter(tmp_path_factory):
    """For a model of other widths."""
    import numpy as np

    from trainer.gguf.adapter import write_adapter

    factors = {
        "blk.0.attn_q.weight.lora_a": np.ones((2, 24), np.float32),
        "blk.0.attn_q.weight.lora_b": np.ones((24, 2), np.float32),
    }
    path = tmp_path_factory.mktemp("other") / "other.gguf"
    write_adapter(path, factors, architecture="llama", alpha=4.0, dtype="f32")
    return path


@pytest.mark.parametrize("line", ["/dance", "/seed -1"])
def test_a_script_with_a_wrong_command_ends_there(retrograd, tiny, line):
    done = retrograd("chat", tiny, input=f"{line}\n{QUESTION}\n")
    assert done.returncode == 2
    assert line in done.stderr
    assert done.stdout == ""


# -- with a person -------------------------------------------------------------------------------


class Terminal:
    """`retrograd chat` at a pseudo-terminal, its controlling one, as a shell starts it."""

    TAKE = (
        "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )

    def __init__(self, command) -> None:
        self.outer, inner = pty.openpty()
        self.shown = ""
        self.child = subprocess.Popen(
            [sys.executable, "-c", self.TAKE, *map(str, command)],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env={**os.environ, "TERM": "xterm", "INPUTRC": "/dev/null"},
            start_new_session=True,
        )
        os.close(inner)

    def type(self, text: str) -> None:
        os.write(self.outer, text.encode())

    def until(self, pattern: str, seconds: float = 60) -> str:
        """What was shown up to the first match of ``pattern``; the rest stays for later."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.shown)):
            assert time.monotonic() < deadline, self.shown[-2000:]
            if select.select([self.outer], [], [], 0.1)[0]:
                try:
                    data = os.read(self.outer, 4096)
                except OSError:
                    pytest.fail(f"it ended by itself: {self.shown[-2000:]}")
                self.shown += data.decode("utf-8", "replace")
        before, self.shown = self.shown[: found.end()], self.shown[found.end() :]
        return before

    def status(self) -> int:
        """With what it ends. Its last words are taken, or it could not write them."""
        deadline = time.monotonic() + 60
        while self.child.poll() is None:
            assert time.monotonic() < deadline, self.shown[-2000:]
            if select.select([self.outer], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self.outer, 4096).decode("utf-8", "replace")
                except OSError:
                    continue
        return self.child.returncode

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        os.close(self.outer)


@pytest.fixture
def terminal(retrograd_path):
    opened = []

    def start(*arguments):
        opened.append(Terminal([retrograd_path, "chat", *arguments]))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@pytest.fixture(scope="module")
def endless(random_llama):
    """A model that, asked for the likeliest token, goes on and on."""
    return random_llama(context=60_000)


ENDLESS = ("--temperature", "0", "--ctx", "50000", "--max-new-tokens", "40000")


def test_ctrl_c_stops_the_answer_and_the_second_one_at_the_prompt_leaves(terminal, endless):
    person = terminal(endless, *ENDLESS)
    person.until("> ")
    person.type("hello\r")
    person.until(r"hello\r?\n.{20}")
    person.type("\x03")
    person.until(r"\(stopped\)[^>]*> ")
    person.type("/seed 4\r")
    person.until(r"/seed 4\r?\n[^>]*> ")
    time.sleep(0.5)  # the prompt is there a moment before readline hears of signals
    person.type("\x03")
    assert person.status() == 130
    assert "Traceback" not in person.shown


def test_ctrl_d_leaves_and_so_does_exit(terminal, tiny):
    for leaving in ("\x04", "/exit\r"):
        person = terminal(tiny, "--seed", "5")
        begun = person.until("> ")
        assert "base tiny.gguf: a context of 256 tokens, seed 5. /help tells more." in begun
        person.type(f"{QUESTION}\r")
        assert sampled(tiny, 5) in person.until(r"\n[^>]*> ")
        person.type(leaving)
        assert person.status() == 0


def test_a_persons_mistakes_are_told_and_the_line_is_edited_with_its_history(terminal, tiny):
    person = terminal(tiny, "--seed", "5")
    person.until("> ")
    person.type("/dance\r")
    assert "no such command; /help lists them" in person.until(r"before\s+it[^>]*> ")
    person.type("/help\r")
    assert "/system TEXT" in person.until(r"before\s+it[^>]*> ")
    person.type("Add 2 and 9.\x7f\x7f3.\r")
    assert sampled(tiny, 5) in person.until(r"\n[^>]*> ")
    person.type("\x1b[A\x1b[A\r")  # up, to the line before
    assert "/system TEXT" in person.until(r"before\s+it[^>]*> ")
    person.type("/exit\r")
    assert person.status() == 0


def test_a_signal_ends_an_answer_for_a_script(retrograd_path, endless):
    command = [retrograd_path, "chat", endless, *ENDLESS]
    for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"hello\n")
        child.stdin.flush()
        assert child.stdout.read(5)
        child.send_signal(number)
        _, said = child.communicate(timeout=60)
        assert child.returncode == status, said
        assert b"Traceback" not in said


@pytest.mark.full
def test_smollm2_and_gemma_are_talked_to(retrograd, smollm2, gemma3):
    question = "What is 2 + 2? Answer with a number.\n"
    done = retrograd(
        "chat", smollm2, "--temperature", "0", "--max-new-tokens", "24", input=question
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    text = "The capital of France is\n"
    options = ("--raw", "--temperature", "0", "--max-new-tokens", "4")
    done = retrograd("chat", gemma3, *options, input=text)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("temperature", ["1e-320", "0.009", "101", "inf", "nan", "-1"])
@pytest.mark.parametrize("command", ["chat", "bench"])
def test_a_temperature_that_nothing_can_be_drawn_at_is_refused(command, temperature):
    done = CliRunner().invoke(app, [command, "model.gguf", "--temperature", temperature])
    assert done.exit_code == 2
    assert "neither 0" in done.output


def test_an_answer_has_as_many_tokens_as_on_the_page():
    parameters = inspect.signature(chat).parameters
    assert parameters["max_new_tokens"].default == USUAL_ANSWER
