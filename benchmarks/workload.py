"""The update that retrograd and TRL are timed on: 4 prompts × 8 answers of at most 64 tokens,
LoRA of rank 8 on every matrix, Dr. GRPO, one pass, no KL, F32, the reward a function of length."""

from __future__ import annotations

import random

PROMPTS = 64
PROMPTS_PER_UPDATE = 4
GROUP_SIZE = 8
MAX_NEW_TOKENS = 64
LEARNING_RATE = 1e-5
LORA_RANK = 8
REWARD_PROGRAM = """
import json, sys
for line in sys.stdin:
    r = json.loads(line)
    if "completion" in r:
        r = {"reward": float(len(r["completion"]) % 7), **{k: r[k] for k in r if k[0] == "_"}}
    print(json.dumps(r), flush=True)
"""
"""The reward is the length modulo 7."""


def conversations(repeat: int) -> list[list[dict[str, str]]]:
    """Additions under a system prompt of ``repeat`` sentences (0: about 45 tokens in all; 32: about
    260)."""
    rng = random.Random(0)
    system = "You are a careful arithmetic assistant. " * repeat
    return [
        [
            {"role": "system", "content": system.strip() or "Answer briefly."},
            {"role": "user", "content": f"What is {rng.randint(1, 50)} + {rng.randint(1, 50)}?"},
        ]
        for _ in range(PROMPTS)
    ]


def reward(completion: str) -> float:
    return float(len(completion) % 7)
