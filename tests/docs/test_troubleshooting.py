"""What docs/troubleshooting.md says of symptoms, by small runs that have them, and by the names of
numbers and keys and the words of errors that it quotes."""

from __future__ import annotations

import json
import re

import pytest
from doc_pages import ROOT

from trainer.config import load_config
from trainer.monitor import SilentMonitor
from trainer.run import run

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
DEFINED = "\n".join(
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("grpo", "ppo", "sft", "health", "evaluation", "judge")
)
KEYS = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
SOURCE = re.sub(
    r'"\s*f?"',
    "",
    "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "trainer").rglob("*.py")),
)

PROGRAM = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "completion" in message:
        echoed = {k: v for k, v in message.items() if k.startswith("_retrograd")}
        message = {"reward": REWARD, **echoed}
    print(json.dumps(message), flush=True)
"""


class Watcher(SilentMonitor):
    def __init__(self):
        self.values = []

    def metrics(self, update, status, values):
        self.values.append((status, values))


@pytest.fixture
def observed(examples, tmp_path):
    """A run of the smallest GRPO example with another reward and other keys: how it ended, and its
    updates."""

    def go(reward, **changes):
        text = (examples / "smoke_tiny_grpo.toml").read_text(encoding="utf-8")
        text = text.replace("tiny/", f"{examples}/tiny/").replace("../runs", "runs")
        for key, value in {"updates": 2, **changes}.items():
            text, count = re.subn(rf"(?m)^{key} = .*", f"{key} = {json.dumps(value)}", text)
            if not count:
                text = text.replace("[grpo]\n", f"[grpo]\n{key} = {json.dumps(value)}\n")
        program = PROGRAM.replace("REWARD", reward)
        (tmp_path / "smoke_rl_reward.py").write_text(program, encoding="utf-8")
        (tmp_path / "run.toml").write_text(text, encoding="utf-8")
        watcher = Watcher()
        outcome = run(load_config(tmp_path / "run.toml"), watcher)
        return outcome, watcher.values

    return go


@pytest.fixture(scope="module")
def examples():
    return ROOT / "examples"


def test_dead_groups_are_skipped_and_end_the_run_with_the_words_of_the_page(observed):
    outcome, updates = observed("0.5", updates=9, max_stalled_updates=2)
    assert [status for status, _ in updates] == ["skipped", "skipped"]
    assert {values["batch/zero_std_group_fraction"] for _, values in updates} == {1.0}
    assert "no group of the last 2 updates carried signal" in outcome.message


def test_the_loss_is_zero_and_the_clip_fraction_too_where_each_update_makes_one_step(observed):
    """Answers of one token each, so that none weighs more than another."""
    reward = 'ord((message["completion"] or "0")[0]) % 10 / 10'
    _, updates = observed(reward, prompts_per_update=1, max_new_tokens=1, updates=4)
    trained = [values for status, values in updates if status == "trained"]
    assert trained
    for values in trained:
        assert values["policy/total_loss"] == pytest.approx(0, abs=0.01)
        assert values["policy/clip_fraction"] == 0
        assert values["optimizer/grad_norm"] > 0.01


def test_the_loss_is_another_number_where_long_answers_score_differently(observed):
    _, updates = observed('len(message["completion"]) / 10', prompts_per_update=1, updates=4)
    trained = [values for status, values in updates if status == "trained"]
    assert trained
    assert all(values["policy/total_loss"] < -0.01 for values in trained)


def test_everything_is_truncated_where_answers_may_have_one_token(observed):
    _, updates = observed("1.0", max_new_tokens=1, updates=1)
    assert updates[0][1]["completions/truncation_fraction"] == 1.0


def test_numbers_on_the_page_are_ones_that_runs_have():
    named = set(re.findall(r"`([a-z]+/[a-z_]+)`", PAGE)) - {"reward/parts"}
    assert len(named) > 12
    for name in named:
        group, _, rest = name.partition("/")
        # The pages join what has one beginning: `eval/reward_min|reward_max`.
        assert re.search(rf"`{group}/[^`]*\b{rest}\b", DEFINED), name


def test_keys_on_the_page_are_ones_that_a_file_may_have():
    keys = re.findall(r"`(?:training\.|grpo\.|ppo\.)?([a-z]+_[a-z_]+)`", PAGE)
    for key in {*keys} - {"judge_words"}:
        assert re.search(rf"`{key}`|\.{key}\]`", KEYS), key


@pytest.mark.parametrize(
    "words", ["carried signal", "the trust-region guard stopped the run", "judge_dropped"]
)
def test_words_of_errors_are_those_of_the_program(words):
    assert words in SOURCE


def test_links_lead_to_places_that_are_there():
    """On all pages: files, and headings as GitHub names them."""
    for page in [
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]:
        text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if "://" in target:
                continue
            name, _, heading = target.partition("#")
            file = (page.parent / name).resolve() if name else page
            assert file.exists(), f"{page.name}: {target}"
            if heading:
                assert heading in anchors(file), f"{page.name}: {target}"


def anchors(page):
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
