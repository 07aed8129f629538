"""Runs of each algorithm as a monitor tells of them, with evaluations and findings, and drafts that
cannot start: for what a real run would take minutes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
from told_runs import enter, groups, info, outcome, values
from web import page_headers

from app.store.monitor import StoreMonitor
from e2e.server import Server
from trainer.monitor import Event

UPDATES = 12
PARAMS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {"group_size": 4, "prompts_per_update": 2, "kl_coefficient": 0.02, "judge": None},
    "ppo": {"kl_coefficient": 0.0, "kl_anchor": "rollout", "critic": {"enabled": True}},
    "sft": {"data": "/data/texts.jsonl", "shuffle": True},
}
OWN = {
    "grpo": lambda update: {"policy/kl": 0.01 * update, "judge/latency": 0.3},
    "ppo": lambda update: {
        "critic/explained_variance": 0.05 * update,
        "critic/value_mean": 0.3,
        "policy/ratio_max": 1.2,
    },
    "sft": lambda update: {"sft/loss": 3.0 / update, "sft/tokens": 512.0, "sft/epoch": update / 6},
}


def tell_kind(server: Server, folder: Path, algorithm: str) -> int:
    """A run of ``algorithm`` that was evaluated every third update, stopped, and went on; its
    id."""
    folder.mkdir(parents=True, exist_ok=True)
    with closing(server.store()) as store:
        run_id = enter(store, folder, name=f"by {algorithm}", algorithm=algorithm)
        params = {
            "run": {"name": f"by {algorithm}", "algorithm": algorithm},
            algorithm: PARAMS[algorithm],
            "evaluation": {"data": "/data/held.jsonl", "every_iterations": 3},
            "observe": {"directory": None, "every": 1, "max_text_chars": 0},
        }
        half = UPDATES // 2
        for first, resumed in ((1, None), (half + 1, half)):
            known = {"name": f"by {algorithm}", "algorithm": algorithm, "params": params}
            told = info(folder, updates=UPDATES, resumed_from_update=resumed, **known)
            monitor = StoreMonitor(store, run_id)
            monitor.run_started(told)
            for update in range(first, first + half):
                _tell(monitor, update, algorithm)
            monitor.run_finished(outcome(first + half - 1))
    return run_id


def _tell(monitor: StoreMonitor, update: int, algorithm: str) -> None:
    own = OWN[algorithm](update)
    if algorithm == "sft":
        steps = {"optimizer/step": float(update), "optimizer/learning_rate": 1e-4}
        monitor.metrics(update, "trained", own | steps | {"optimizer/grad_norm": 0.5})
    else:
        size = 1 if algorithm == "ppo" else 4
        monitor.trajectories(update, groups(update, size=size))
        monitor.metrics(update, "trained", values(update) | own)
    if update % 3 == 0:
        if algorithm == "sft":
            monitor.evaluation(update, [], {"eval/loss": 3.2 / update, "eval/tokens": 300.0})
        else:
            held_out = {"eval/mean_reward": update / 20, "eval/reward_std": 0.2}
            monitor.evaluation(update, groups(update, size=1), held_out)
        words = "the loss stands still: lower training.lr, or end the run here"
        monitor.event(Event("warning", "health", words, update, {"metric": "reward/mean"}))


def wrong_draft(server: Server) -> str:
    """The address of a draft whose every second line is wrong."""
    lines = ["[run]", 'algorithm = "grpo"', "nmae = 1", "[grpo]", "group_siz = 4"]
    lines += ['prompts = "prompts.jsonl"', "updates = -1", 'reward_command = "one word"']
    lines += [f'"{"a_key_without_an_end" * 8}" = 1']
    return _draft(server, "\n".join(lines))


def draft_without_its_files(server: Server) -> str:
    """The address of a draft that can be read, and names files that are not there."""
    (server.workspace / "folder").mkdir(exist_ok=True)
    text = """
        [run]
        algorithm = "sft"
        [model]
        path = "no/such/model/with/a/rather/long/path/that/a/telephone/has/no/room/for.gguf"
        [output]
        path = "adapter.gguf"
        [lora]
        rank = 2
        alpha = 4.0
        [training]
        lr = 0.01
        ctx = 64
        [sft]
        data = "folder"
    """
    return _draft(server, text, {"unused.jsonl": "{}"})


def _draft(server: Server, text: str, files: Mapping[str, str] | None = None) -> str:
    with httpx.Client(base_url=server.url, timeout=20) as client:
        answer = client.post(
            "/runs/new",
            data={"toml": text},
            files=[("files", pair) for pair in (files or {}).items()] or None,
            headers=page_headers(client, "/runs/new"),
        )
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]
