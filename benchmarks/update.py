"""Seconds and memory of a GRPO update in retrograd.

    python benchmarks/update.py MODEL.gguf [--updates 3] [--repeat 0]

Prints a line for each update, and at the end the mean and the peak resident memory. The command
that it times is `retrograd train` as a user types it, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import workload

CONFIG = """
[run]
algorithm = "grpo"
[model]
path = {model}
[output]
path = "adapter.gguf"
[lora]
rank = {rank}
alpha = 16.0
[training]
ctx = 512
lr = {lr}
threads = {threads}
[grpo]
prompts = "prompts.jsonl"
reward_command = ["python3", "reward.py"]
updates = {updates}
prompts_per_update = {prompts}
group_size = {group}
grpo_epochs = 1
clip_range_low = 0.2
clip_range_high = 0.28
kl_coefficient = 0.0
[grpo.sampling]
temperature = 1.0
top_p = 1.0
max_new_tokens = {tokens}
seed = 1
[observe]
directory = "."
"""


def write_run(folder: Path, args: argparse.Namespace) -> Path:
    lines = [json.dumps({"messages": m}) for m in workload.conversations(args.repeat)]
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    (folder / "reward.py").write_text(workload.REWARD_PROGRAM)
    config = CONFIG.format(
        model=json.dumps(str(args.model.resolve())),
        rank=workload.LORA_RANK,
        lr=workload.LEARNING_RATE,
        threads=args.threads,
        updates=args.updates,
        prompts=workload.PROMPTS_PER_UPDATE,
        group=workload.GROUP_SIZE,
        tokens=workload.MAX_NEW_TOKENS,
    )
    (folder / "grpo.toml").write_text(config)
    return folder / "grpo.toml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = write_run(folder, args)
        start = time.perf_counter()
        command = [Path(sys.executable).with_name("retrograd"), "train", config]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        total = time.perf_counter() - start
        lines = (folder / "observe.jsonl").read_text().splitlines()
    updates = [r["metrics"] for r in map(json.loads, lines) if r["type"] == "update"]
    for metrics in updates:
        timing = {k[7:-8]: v for k, v in metrics.items() if k.startswith("timing/")}
        words = "  ".join(f"{stage} {seconds:.2f}" for stage, seconds in timing.items())
        print(f"{words}  length {metrics['completions/length_mean']:.0f}")
    mean = sum(m["timing/update_seconds"] for m in updates) / len(updates)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"seconds_per_update {mean:.2f}")
    print(f"seconds_around_updates {total - mean * len(updates):.2f}")
    print(f"peak_rss_mib {peak:.0f}")


if __name__ == "__main__":
    main()
