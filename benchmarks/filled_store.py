"""A store as it is after a year of use: many runs, and one of them very long.

The rows are written through the tables of the store, many at a time, and are what a monitor would
have written: real names of metrics, answers of realistic lengths whose words are as unevenly
frequent as those of a language.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import insert, select, text

from app.store.database import Store
from app.store.models import (
    Answer,
    Artifact,
    Event,
    Group,
    Metric,
    MetricName,
    Prompt,
    Run,
    Segment,
    Update,
)
from trainer.config import load_config

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "examples" / "smoke_tiny_grpo.toml"
RARE_WORD = "zanzibar"
"""In about one of a thousand answers."""
COMMON_WORD = "because"
"""In about every second answer."""

_TOLD = """
reward/mean reward/min reward/max reward/std reward/verifiable_mean reward/group_std
reward/judge_mean reward/judge_share
completions/length_mean completions/length_min completions/length_max
completions/truncation_fraction completions/duplicate_fraction
batch/trained_fraction batch/advantage_abs_mean batch/zero_std_group_fraction
sampler/logprob_gap_mean sampler/logprob_gap_max sampler/kl sampler/correction_capped_fraction
throughput/generate_tokens_per_second throughput/train_tokens_per_second
system/rss_bytes system/cpu_percent
audit/verbosity audit/sycophancy audit/repetition audit/words_mean audit/over_limit
timing/generate_seconds timing/reward_seconds timing/score_seconds timing/train_seconds
timing/swap_seconds timing/update_seconds
packing/fanout packing/passes packing/shared_prefix_fraction packing/padding_fraction
policy/surrogate_loss policy/total_loss policy/approx_kl policy/clip_fraction
policy/clip_fraction_low policy/clip_fraction_high policy/entropy policy/ratio_max
optimizer/learning_rate optimizer/grad_norm optimizer/step
"""
NAMES = _TOLD.split()

_ROWS_AT_ONCE = 20_000
_PARTS = ("correct", "format")


@dataclass(frozen=True, slots=True)
class Size:
    """``points`` and ``answers`` are those of the long run, which is the newest; each other run has
    ``short_updates`` updates."""

    runs: int = 1000
    points: int = 1_000_000
    answers: int = 100_000
    groups_per_update: int = 1
    group_size: int = 5
    short_updates: int = 20

    @property
    def updates(self) -> int:
        return self.points // len(NAMES)


@dataclass(frozen=True, slots=True)
class Filled:
    """``long_run`` is the id of the run with all the rows, ``other_run`` that of a short one."""

    long_run: int
    other_run: int
    updates: int
    prompts: int


def fill(store: Store, size: Size, seed: int = 0) -> Filled:
    """Fill an empty store, and let the database count what is in it."""
    rng = random.Random(seed)
    with store.write() as session:
        session.execute(insert(MetricName), [{"name": name} for name in NAMES])
        found = session.scalars(select(MetricName))
        names = {metric.name: metric.id for metric in found}
    ids = [_run(store, rng, number, size) for number in range(size.runs)]
    for run_id in ids[:-1]:
        _updates(store, rng, run_id, names, size.short_updates, NAMES[:6])
    _updates(store, rng, ids[-1], names, size.updates, NAMES)
    prompts = _answers(store, rng, ids[-1], size)
    _journal(store, rng, ids[-1], size.updates)
    with store.engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").execute(text("ANALYZE"))
    return Filled(ids[-1], ids[-2], size.updates, prompts)


def words(rng: random.Random, count: int) -> str:
    """``count`` words out of 20,000, the n-th of them as frequent as 1/n."""
    ranks = (int(20_000 ** rng.random()) for _ in range(count))
    chosen = [_word(rank) for rank in ranks]
    if rng.random() < 0.001:
        chosen[rng.randrange(count)] = RARE_WORD
    if rng.random() < 0.5:
        chosen[rng.randrange(count)] = COMMON_WORD
    return " ".join(chosen)


def _word(rank: int) -> str:
    """A word that can be spoken, the same for the same rank."""
    syllables = []
    rank += 30
    while rank:
        rank, place = divmod(rank, 70)
        syllables.append("bcdfglmnprstvw"[place % 14] + "aeiou"[place // 14])
    return "".join(syllables)


def _run(store: Store, rng: random.Random, number: int, size: Size) -> int:
    """A run and its one segment, whose id is then the run's own."""
    long = number == size.runs - 1
    updates = size.updates if long else size.short_updates
    started = time.time() - (size.runs - number) * 3600.0
    status = "completed" if long else rng.choice(["completed"] * 6 + ["stopped", "failed"])
    config = load_config(CONFIG)
    row = {
        "name": f"{rng.choice(['addition', 'summaries', 'tone', 'sql'])}-{number:04}",
        "algorithm": "ppo" if number % 4 == 1 else "grpo",
        "model": "SmolLM2-135M-Instruct.Q4_1.gguf",
        "source": rng.choice(["browser", "terminal"]),
        "status": status,
        "message": f"{updates} of {updates} updates made.",
        "folder": "/nowhere/run",
        "config_path": "/nowhere/run/run.toml",
        "config_text": CONFIG.read_text(encoding="utf-8"),
        "params": config.model_dump(mode="json"),
        "facts": {"model": "llama, 135 M weights", "adapter": "rank 8"},
        "provenance": {"retrograd": "0.1.0", "torch": "2.13.0", "python": "3.11"},
        "planned": updates,
        "completed": updates,
        "steps": updates,
        "last_reward": rng.random(),
        "seconds_per_update": 9.0,
        "sparkline": [round(i / 60 * rng.random(), 4) for i in range(60)],
        "findings": [],
        "audited": [],
        "pulse": updates,
        "created_at": started,
        "started_at": started,
        "ended_at": started + 600,
        "heartbeat_at": started + 600,
    }
    with store.write() as session:
        run_id = session.scalars(insert(Run).returning(Run.id), [row]).one()
        segment = {"run_id": run_id, "number": 1, "started_at": started, "status": status}
        session.execute(insert(Segment), [segment])
    return run_id


def _updates(
    store: Store,
    rng: random.Random,
    run_id: int,
    names: dict[str, int],
    count: int,
    told: list[str],
) -> None:
    ours = {"run_id": run_id, "segment_id": run_id}
    began = time.time() - count * 9.0

    def updates() -> Iterator[dict[str, Any]]:
        for update in range(1, count + 1):
            rewards = sorted(round(rng.random(), 3) for _ in range(5))
            yield ours | {
                "update": update,
                "kind": "train",
                "status": "trained",
                "at": began + update * 9.0,
                "steps": update,
                "tokens": update * 400,
                "answers": 5,
                "trained": 5,
                "reward_mean": sum(rewards) / 5,
                "reward_min": rewards[0],
                "reward_max": rewards[-1],
                "rewards": rewards,
            }

    def metrics() -> Iterator[dict[str, Any]]:
        for update in range(1, count + 1):
            trend = 1 - math.exp(-update / count)
            for name in told:
                value = trend + rng.gauss(0, 0.1)
                yield ours | {"name_id": names[name], "update": update, "value": value}

    _write(store, Update, updates())
    _write(store, Metric, metrics())


def _answers(store: Store, rng: random.Random, run_id: int, size: Size) -> int:
    """Prompts, groups and answers, spread over the last updates. Returns the number of prompts."""
    count = min(4096, max(8, size.answers // 20))
    prompts = (_prompt(rng, run_id, number) for number in range(count))
    _write(store, Prompt, prompts)
    with store.read() as session:
        first_prompt = session.scalars(select(Prompt.id).where(Prompt.run_id == run_id)).first()
    per_update = size.groups_per_update * size.group_size
    updates = size.answers // per_update
    begin = size.updates - updates + 1
    groups = [
        _group(rng, run_id, begin + n // size.groups_per_update, n, first_prompt, count, size)
        for n in range(updates * size.groups_per_update)
    ]
    _write(store, Group, iter(groups))
    with store.read() as session:
        places = session.execute(
            select(Group.id, Group.update).where(Group.run_id == run_id).order_by(Group.id)
        ).all()
    _write(
        store,
        Answer,
        (
            _answer(rng, run_id, group_id, update, member)
            for group_id, update in places
            for member in range(size.group_size)
        ),
    )
    return count


def _prompt(rng: random.Random, run_id: int, number: int) -> dict[str, Any]:
    question = f"{words(rng, rng.randint(12, 80))}?"
    return {
        "run_id": run_id,
        "key": f"{number:016x}",
        "line": number + 1,
        "text": question,
        "messages": [{"role": "user", "content": question}],
    }


def _group(
    rng: random.Random,
    run_id: int,
    update: int,
    number: int,
    first_prompt: int | None,
    prompts: int,
    size: Size,
) -> dict[str, Any]:
    mean, spread = rng.random(), rng.random() / 2
    return {
        "run_id": run_id,
        "segment_id": run_id,
        "update": update,
        "kind": "train",
        "number": number % size.groups_per_update,
        "prompt_id": (first_prompt or 1) + number % prompts,
        "size": size.group_size,
        "trained": size.group_size,
        "reward_mean": mean,
        "reward_min": max(0.0, mean - spread),
        "reward_max": min(1.0, mean + spread),
        "spread": spread,
        "tokens_mean": 80.0,
    }


def _answer(
    rng: random.Random, run_id: int, group_id: int, update: int, member: int
) -> dict[str, Any]:
    length = min(400, max(3, int(rng.lognormvariate(4.0, 0.8))))
    said = words(rng, length)
    reward = round(rng.random(), 3)
    truncated = length == 400
    return {
        "run_id": run_id,
        "segment_id": run_id,
        "group_id": group_id,
        "update": update,
        "member": member,
        "text": said,
        "chars": len(said),
        "tokens": int(length * 1.4),
        "truncated": truncated,
        "reward": reward,
        "reward_raw": reward,
        "judge_term": 0.0,
        "parts": {part: round(reward * rng.random(), 3) for part in _PARTS},
        "advantage": reward - 0.5,
        "trained": not truncated,
        "skip_reason": "truncated" if truncated else None,
        "audit": ["verbose"] if rng.random() < 0.02 else [],
        "duplicate": False,
    }


def _journal(store: Store, rng: random.Random, run_id: int, updates: int) -> None:
    events = (
        {
            "run_id": run_id,
            "segment_id": run_id,
            "at": time.time() - number,
            "level": rng.choice(["info", "info", "info", "warning"]),
            "code": "reward_stderr",
            "message": words(rng, 12),
            "update": rng.randint(1, updates),
            "data": {},
        }
        for number in range(min(5000, updates))
    )
    _write(store, Event, events)
    artifacts = (
        {
            "run_id": run_id,
            "kind": "checkpoint",
            "path": f"checkpoints/update-{number:06}",
            "size": 12_000_000,
            "sha256": f"{number:064x}",
            "created_at": time.time() - number,
            "update": number,
        }
        for number in range(1, 21)
    )
    _write(store, Artifact, artifacts)


def _write(store: Store, table: type, rows: Iterator[dict[str, Any]]) -> None:
    some: list[dict[str, Any]] = []
    for row in rows:
        some.append(row)
        if len(some) == _ROWS_AT_ONCE:
            _insert(store, table, some)
            some = []
    if some:
        _insert(store, table, some)


def _insert(store: Store, table: type, rows: list[dict[str, Any]]) -> None:
    with store.write() as session:
        session.connection().execute(insert(table.__table__), rows)  # type: ignore[attr-defined]
