"""What each type keeps of a merged adapter, as a table for docs/merging.md.

    python benchmarks/merge_types.py MODEL.gguf [--types f32,f16,q8_0,same] [--size 0.08]

A random adapter is merged to each type, and llama.cpp computes the log-probabilities of a text with
the result, and with a copy of the base in F32 and the adapter. Nats a token, by probability.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from trainer.export import write
from trainer.gguf.architecture import describe
from trainer.gguf.file import GgufFile
from trainer.gguf.tensors import select_targets
from trainer.llama.quantize import widen
from trainer.merge.merging import merge
from trainer.merge.plan import make_plan
from trainer.model.adapter import Adapter
from trainer.rollout.answers import SamplingSettings
from trainer.rollout.engine import RolloutEngine
from trainer.rollout.nats import LogProbs, logprobs, mean_nats

TYPES = "f32,f16,bf16,q8_0,q6_k,q5_k_m,q4_k_m,same"
TOKENS = 32
TEXT = (
    "The quick brown fox jumps over the lazy dog. Seven plus five is twelve, and the capital of "
    "France is Paris. def add(a, b): return a + b"
)


def computed(model: Path, threads: int, adapters: tuple[Path | None, ...]) -> list[LogProbs]:
    """What the model makes of the text, under one adapter after the other."""
    with RolloutEngine(
        model,
        ctx=2 * TOKENS,
        concurrency=1,
        max_prompt_tokens=TOKENS,
        group_size=1,
        settings=SamplingSettings(1.0, 1.0, 1),
        exact=True,
        threads=threads,
    ) as engine:
        tokens = engine.vocabulary.tokenize(TEXT, special=False)[:TOKENS]
        found = []
        for adapter in adapters:
            engine.swap_adapter(adapter)
            found.append(logprobs(engine, tokens))
        return found


def random_adapter(model: Path, target: Path, size: float, rank: int, seed: int) -> None:
    architecture = describe(GgufFile(model))
    targets = select_targets(architecture, ("auto",))
    device = torch.device("cpu")
    adapter = Adapter(architecture, targets, rank=rank, alpha=rank, seed=seed, device=device)
    write(target, adapter.random(size), dtype="f32")


def row(name: str, nats: float, path: Path) -> None:
    digits = f"{nats:.6f}" if nats < 1e-3 else f"{nats:.3f}"
    print(f"| {name} | {digits} | {path.stat().st_size / 2**20:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--types", default=TYPES)
    parser.add_argument("--size", type=float, default=0.08, help="of the adapter's numbers")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.model.parent) as scratch:
        folder = Path(scratch)
        adapter, wide, made = (folder / name for name in ("a.gguf", "wide.gguf", "made.gguf"))
        random_adapter(args.model, adapter, args.size, args.rank, args.seed)
        widen(args.model, wide, "f32", threads=args.threads)
        alone, wanted = computed(wide, args.threads, (None, adapter))
        wide.unlink()
        print("| | nats | MiB |\n| --- | --- | --- |")
        row("the base without the adapter", mean_nats(wanted - alone, wanted), args.model)
        for kind in args.types.split(","):
            plan = make_plan(args.model, adapter, kind)
            merge(plan, made, lambda _: None, threads=args.threads)
            (found,) = computed(made, args.threads, (None,))
            row(f"`{kind}`", mean_nats(wanted - found, wanted), made)
            made.unlink()


if __name__ == "__main__":
    main()
