"""Runs to talk to: a model and an adapter that tells its answers from the base's, and the run in a
store that left them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from told_runs import enter, info, outcome, tell

from app.store.database import Store
from app.store.monitor import StoreMonitor
from trainer.conversation import Partner
from trainer.gguf.adapter import write_adapter
from trainer.gguf.file import GgufFile
from trainer.rollout.answers import SamplingSettings
from trainer.rollout.engine import RolloutEngine


def write_random_adapter(path: Path, base: Path, *, size: float = 0.05) -> Path:
    """Random factors of every query and down matrix."""
    rng = np.random.default_rng(0)
    factors = {}
    for name, about in GgufFile(base).tensors.items():
        if name.endswith(("attn_q.weight", "ffn_down.weight")):
            rows, columns = about.shape
            factors[f"{name}.lora_a"] = rng.standard_normal((4, columns), np.float32)
            factors[f"{name}.lora_b"] = rng.standard_normal((rows, 4), np.float32) * size
    write_adapter(path, factors, architecture="llama", alpha=8.0, dtype="f32")
    return path


def enter_talker(store: Store, folder: Path, model: Path, *, ctx: int, **changes: Any) -> int:
    """The id of a run that has ended, and has left ``adapter.gguf`` in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    base = folder / "base.gguf"
    shutil.copyfile(model, base)
    adapter = write_random_adapter(folder / "adapter.gguf", base)
    params = {
        "model": {"path": str(base), "device": "cpu"},
        "training": {"ctx": ctx, "fast_sampling_context": True},
        "grpo": {"sampling": {"temperature": 1.0, "top_p": 1.0, "max_new_tokens": 24}},
    }
    run_id = enter(store, folder)
    monitor = StoreMonitor(store, run_id)
    monitor.run_started(info(folder, params=params, **changes))
    tell(monitor, 1)
    monitor.run_finished(outcome(1, output=str(adapter)))
    return run_id


def sampled(
    model: Path, question: str, seed: int, *, adapter: Path | None = None, tokens: int = 24
) -> str:
    """The answer to a first message of the sampler that runs are trained with."""
    with Partner(model) as partner:
        prompt = partner.conversation().prompt(question)
    with RolloutEngine(
        model,
        ctx=256,
        concurrency=1,
        max_prompt_tokens=64,
        group_size=1,
        settings=SamplingSettings(1.0, 1.0, tokens),
        exact=False,
        threads=1,
    ) as engine:
        engine.swap_adapter(adapter)
        return engine.sample([prompt], [[seed]])[0][0].text
