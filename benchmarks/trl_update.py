"""Seconds and memory of the same GRPO update in TRL.

    python benchmarks/trl_update.py MODEL.gguf [--updates 2] [--repeat 0]

Runs in a virtual environment of its own with torch, transformers, trl, peft, datasets and gguf. TRL
cannot train on a GGUF file, so the base is dequantised into a folder first; that is not timed.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

import workload

os.environ["HF_HUB_OFFLINE"] = "1"


def dequantised(model: Path, folder: Path) -> Path:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": str(model.parent), "gguf_file": model.name}
    base = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    for name in ("hf_quantizer", "quantization_method", "is_quantized"):
        if hasattr(base, name):
            delattr(base, name)
    if hasattr(base.config, "quantization_config"):
        del base.config.quantization_config
    base.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**where).save_pretrained(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--updates", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--base", type=Path, help="a folder made by an earlier run")
    args = parser.parse_args()

    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as scratch:
        base = args.base or dequantised(args.model, Path(scratch) / "base")
        size = workload.GROUP_SIZE
        config = GRPOConfig(
            output_dir=str(Path(scratch) / "out"),
            per_device_train_batch_size=size,
            gradient_accumulation_steps=workload.PROMPTS_PER_UPDATE,
            steps_per_generation=workload.PROMPTS_PER_UPDATE,
            num_generations=size,
            max_completion_length=workload.MAX_NEW_TOKENS,
            loss_type="dr_grpo",
            scale_rewards="none",
            beta=0.0,
            epsilon=0.2,
            epsilon_high=0.28,
            learning_rate=workload.LEARNING_RATE,
            max_steps=args.updates,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            model=str(base),
            reward_funcs=lambda completions, **_: [
                workload.reward(c[0]["content"]) for c in completions
            ],
            args=config,
            train_dataset=Dataset.from_list(
                [{"prompt": c} for c in workload.conversations(args.repeat)]
            ),
            processing_class=AutoTokenizer.from_pretrained(base),
            peft_config=LoraConfig(
                r=workload.LORA_RANK, lora_alpha=16, target_modules="all-linear"
            ),
        )
        start = time.perf_counter()
        trainer.train()
        print(f"seconds_per_update {(time.perf_counter() - start) / args.updates:.2f}")
    print(f"peak_rss_mib {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}")


if __name__ == "__main__":
    main()
