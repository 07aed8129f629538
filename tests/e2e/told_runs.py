"""Runs as a monitor tells of them, for what no real run of a tiny model says: texts that try to run
script, names without end, numbers that are none."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sqlalchemy import update

from app.store.database import Store
from app.store.models import Run
from app.store.monitor import StoreMonitor
from app.store.registry import new_run
from e2e.runs import WORD
from e2e.server import Server
from e2e.watched_page import FOREIGN
from trainer.chat.messages import Message, PromptLine
from trainer.monitor import Event, GroupRecord, Outcome, RunInfo, Trajectory
from trainer.rollout.answers import Answer

HOSTILE = (
    f'"><img src=x onerror="{FOREIGN}"></script><script>{FOREIGN}</script>'
    f"<svg onload={FOREIGN}>'`${{{FOREIGN}}}{{{{7*7}}}} [a](javascript:{FOREIGN}) ]]>-->"
)
HOSTILE_FILE = f"<img src=x onerror={FOREIGN}>&quot;'.gguf"
LONG = "aVeryLongNameWithoutAnyPlaceToBreakIt" * 8


@dataclass(frozen=True, slots=True)
class Words:
    """What a told run says in each place."""

    name: str
    prompt: str
    answer: str
    judge: str
    part: str
    event: str
    model: str
    output: str
    fact: str = "fact"


def hostile_words() -> Words:
    return Words(
        name=f"run {HOSTILE}",
        prompt=f"prompt {HOSTILE}",
        answer=f"answer {WORD} {HOSTILE}",
        judge=f"judge {HOSTILE}",
        part=f"part {HOSTILE}",
        event=f"event {HOSTILE}",
        model=HOSTILE_FILE,
        output=HOSTILE_FILE,
        fact=f"fact {HOSTILE}",
    )


def endless_words() -> Words:
    return Words(
        name=LONG,
        prompt=LONG * 4,
        answer=f"{WORD} {LONG * 6}",
        judge=LONG * 2,
        part=LONG[:120],
        event=LONG * 3,
        model=f"{LONG[:200]}.gguf",
        output=f"{LONG[:200]}.gguf",
        fact=LONG,
    )


def tell_run(server: Server, folder: Path, words: Words, updates: int = 3) -> int:
    """Enter a run into the server's store as its own process would; its id."""
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / words.output
    output.write_bytes(b"an adapter, so to say")
    config = folder / "grpo.toml"
    config.write_text(f"# {words.name}\n[run]\nname = 'x'\n", encoding="utf-8")
    with closing(server.store()) as store:
        run_id = _entered(store, config)
        monitor = StoreMonitor(store, run_id)
        monitor.run_started(_info(words, output, updates))
        for number in range(1, updates + 1):
            monitor.trajectories(number, [_group(words, group) for group in range(2)])
            monitor.metrics(number, "trained", _values(words, number))
        for level in ("info", "warning", "error"):
            monitor.event(Event(level, "reward_stderr", words.event, 1, {words.part: words.event}))
        monitor.run_finished(Outcome("failed", updates, str(output), f"Failed: {words.event}"))
    return run_id


def _entered(store: Store, config: Path) -> int:
    with store.write() as session:
        run = new_run(1_700_000_000.0)
        run.name = run.algorithm = run.model = ""
        run.source, run.status = "terminal", "starting"
        run.folder, run.config_path = str(config.parent), str(config)
        run.config_text = config.read_text(encoding="utf-8")
        session.add(run)
        session.flush()
        return run.id


def _info(words: Words, output: Path, updates: int) -> RunInfo:
    return RunInfo(
        name=words.name,
        algorithm="grpo",
        model=str(output.with_name(words.model)),
        output=str(output),
        updates=updates,
        params={
            "run": {"name": words.name, "algorithm": "grpo"},
            "observe": {"every": 1, "max_text_chars": 0},
            "grpo": {"reward_command": ["python3", words.part], "kl_coefficient": 0.0},
        },
        facts={"model": words.fact, words.fact: words.part},
    )


def _group(words: Words, number: int) -> GroupRecord:
    question = PromptLine(
        number + 1,
        (Message("system", words.prompt), Message("user", f"{words.prompt} {number}")),
        {},
        None,
        f"key-{number}",
    )
    return GroupRecord(number, question, [_trajectory(words, m, number) for m in range(4)])


def _trajectory(words: Words, member: int, group: int) -> Trajectory:
    reasons = {0: None, 1: None, 2: "truncated", 3: "judge_dropped"}
    tokens = np.zeros(7 + member, np.int32)
    return Trajectory(
        member=member,
        answer=Answer(tokens, np.zeros(7 + member, np.float32), member != 2, _said(words, member)),
        reward=member / 4 + group / 10,
        reward_raw=member / 4,
        judge_term=0.1,
        parts={words.part: 0.5},
        advantage=member - 1.5,
        trained=reasons[member] is None,
        skip_reason=reasons[member],  # type: ignore[arg-type]
        audit=("verbose",) if member == 1 else (),
        judge_words=words.judge,
    )


def _said(words: Words, member: int) -> str:
    return words.answer if member < 2 else f"{words.answer} and {member} more"


def _values(words: Words, number: int) -> dict[str, float]:
    return {
        "reward/mean": 0.1 * number,
        "reward/min": 0.0,
        "reward/max": 0.75,
        "reward/group_std": 0.2,
        "policy/clip_fraction": 0.05,
        "policy/total_loss": math.nan if number == 2 else 0.0,
        "policy/ratio_max": math.inf if number == 2 else 1.1,
        "optimizer/grad_norm": 0.5,
        "optimizer/step": float(number),
        f"reward/part/{words.part}": 0.3,
        "timing/update_seconds": 1.0,
    }


def mark(server: Server, run_id: int, **columns: object) -> None:
    """Set columns of a run."""
    with closing(server.store()) as store, store.write() as session:
        session.execute(update(Run).where(Run.id == run_id).values(**columns))
