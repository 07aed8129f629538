"""Trains the tiny model of the examples from nothing and writes it as a GGUF file.

The model is a llama decoder with a byte-level vocabulary that answers one-digit additions. Its
training answers are wrong on purpose two times in five and wordy a quarter of the time, so
that reinforcement learning has something to improve and its samples differ from each other.

    python examples/tiny/make.py

It needs torch, numpy and gguf, and a few minutes on two cores.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent

PHRASINGS = (
    "What is {a} + {b}?",
    "How much is {a} + {b}?",
    "{a} + {b} = ?",
    "Add {a} and {b}.",
    "Compute {a} + {b}.",
)
LARGEST = 18

TURN_START, TURN_END, DOCUMENT_END = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Shape:
    layers: int = 4
    width: int = 128
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 32
    feed_forward: int = 256
    context: int = 256
    rope_base: float = 10000.0
    norm_epsilon: float = 1e-5


# --- vocabulary ---------------------------------------------------------------------------------


def byte_symbols() -> list[str]:
    """One printable character per byte value, as byte-level BPE spells bytes in its files.

    Printable Latin-1 bytes stand for themselves; the others take the code points from 256 on, in
    order (Radford et al. 2019, the vocabulary of GPT-2).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    substitutes = iter(range(256, 512))
    return [chr(byte if byte in printable else next(substitutes)) for byte in range(256)]


class Vocabulary:
    """256 bytes, the merges that make each role's name one token, and three control tokens."""

    def __init__(self) -> None:
        self.merges = [
            (word[:end], word[end])
            for word in ("user", "assistant", "system")
            for end in range(1, len(word))
        ]
        self.symbols = byte_symbols()
        merged = [left + right for left, right in self.merges]
        self.control = [TURN_START, TURN_END, DOCUMENT_END]
        self.tokens = [*self.symbols, *merged, *self.control]
        self.ids = {token: index for index, token in enumerate(self.tokens)}

    def encode(self, text: str) -> list[int]:
        """Plain text to ids. The merges are within words, so no pre-tokeniser is needed."""
        pieces = [self.symbols[byte] for byte in text.encode()]
        for left, right in self.merges:
            start = 0
            while start < len(pieces) - 1:
                if (pieces[start], pieces[start + 1]) == (left, right):
                    pieces[start : start + 2] = [left + right]
                start += 1
        return [self.ids[piece] for piece in pieces]

    def prompt(self, question: str) -> list[int]:
        """The ids of ``CHAT_TEMPLATE`` applied to one user message, ready for an answer."""
        start, end = self.ids[TURN_START], self.ids[TURN_END]
        user, assistant = self.encode(f"user\n{question}"), self.encode("assistant\n")
        return [start, *user, end, *self.encode("\n"), start, *assistant]


# --- data ---------------------------------------------------------------------------------------


def draw_result(right: int, rng: random.Random) -> int:
    """The right result in three draws of five, else a wrong one, mostly near."""
    if rng.random() < 0.6:
        return right
    while True:
        near = right + rng.choice((-3, -2, -2, -1, -1, -1, 1, 1, 1, 2, 2, 3))
        wrong = near if rng.random() < 0.8 else rng.randint(0, LARGEST)
        if wrong != right and 0 <= wrong <= LARGEST:
            return wrong


def draw_answer(right: int, rng: random.Random) -> str:
    result = draw_result(right, rng)
    return f"It is {result}." if rng.random() < 0.25 else str(result)


def batches(
    vocabulary: Vocabulary, size: int, rng: random.Random
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches of inputs and targets, each (size, longest) int64.

    Targets are -100 except where the next token belongs to the answer or ends it.
    """
    end = vocabulary.ids[TURN_END]
    while True:
        rows: list[tuple[list[int], int]] = []
        for _ in range(size):
            a, b = rng.randint(0, 9), rng.randint(0, 9)
            prompt = vocabulary.prompt(rng.choice(PHRASINGS).format(a=a, b=b))
            answer = vocabulary.encode(draw_answer(a + b, rng))
            rows.append(([*prompt, *answer, end], len(prompt)))
        longest = max(len(ids) for ids, _ in rows) - 1
        inputs = torch.full((size, longest), end)
        targets = torch.full((size, longest), -100)
        for row, (ids, prompt_length) in enumerate(rows):
            inputs[row, : len(ids) - 1] = torch.tensor(ids[:-1])
            targets[row, prompt_length - 1 : len(ids) - 1] = torch.tensor(ids[prompt_length:])
        yield inputs, targets


def write_prompts(path: Path, count: int, rng: random.Random) -> None:
    """``count`` different sums as chat lines that carry the right ``answer``."""
    sums = rng.sample([(a, b) for a in range(10) for b in range(10)], count)
    lines = []
    for a, b in sums:
        question = rng.choice(PHRASINGS).format(a=a, b=b)
        message = {"role": "user", "content": question}
        lines.append(json.dumps({"messages": [message], "answer": a + b}) + "\n")
    path.write_text("".join(lines), encoding="utf-8")


def write_sums(learnt: Path, held_out: Path, rng: random.Random) -> None:
    """All 100 sums as chat lines with the right number alone for an answer: 80 to learn from, 20
    held out."""
    sums = [(a, b) for a in range(10) for b in range(10)]
    rng.shuffle(sums)
    lines = []
    for a, b in sums:
        question = rng.choice(PHRASINGS).format(a=a, b=b)
        messages = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": str(a + b)},
        ]
        lines.append(json.dumps({"messages": messages}) + "\n")
    learnt.write_text("".join(lines[:80]), encoding="utf-8")
    held_out.write_text("".join(lines[80:]), encoding="utf-8")


# --- model --------------------------------------------------------------------------------------


def rotate(x: Tensor, base: float) -> Tensor:
    """Rotary positions on neighbouring pairs (2i, 2i + 1), the order of llama files in GGUF.

    ``x`` is (batch, heads, length, head size); position p turns pair i by p / base^(2i / size)
    radians (Su et al. 2021).
    """
    length, size = x.shape[-2:]
    speed = base ** (-torch.arange(0, size, 2) / size)
    angle = torch.arange(length)[:, None] * speed
    cos, sin = angle.cos(), angle.sin()
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class Block(nn.Module):
    """One decoder layer: grouped-query attention, then a gated feed-forward network."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        inner, kv = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
        self.attn_norm = nn.RMSNorm(shape.width, shape.norm_epsilon)
        self.attn_q = nn.Linear(shape.width, inner, bias=False)
        self.attn_k = nn.Linear(shape.width, kv, bias=False)
        self.attn_v = nn.Linear(shape.width, kv, bias=False)
        self.attn_output = nn.Linear(inner, shape.width, bias=False)
        self.ffn_norm = nn.RMSNorm(shape.width, shape.norm_epsilon)
        self.ffn_gate = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.ffn_up = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.ffn_down = nn.Linear(shape.feed_forward, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.attn_norm(x))
        h = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))

    def attend(self, h: Tensor) -> Tensor:
        size = self.shape.head_size
        q, k, v = (
            project(h).unflatten(-1, (-1, size)).transpose(1, 2)
            for project in (self.attn_q, self.attn_k, self.attn_v)
        )
        q, k = rotate(q, self.shape.rope_base), rotate(k, self.shape.rope_base)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.attn_output(mixed.transpose(1, 2).flatten(-2))


class Decoder(nn.Module):
    """Module names are GGUF's tensor names; the output matrix is the embedding itself."""

    def __init__(self, shape: Shape, vocabulary_size: int) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(vocabulary_size, shape.width)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = nn.RMSNorm(shape.width, shape.norm_epsilon)
        self.apply(self.initialise)

    def initialise(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.5 / math.sqrt(self.shape.width))

    def forward(self, ids: Tensor) -> Tensor:
        """Ids (batch, length) to logits (batch, length, vocabulary)."""
        x = self.token_embd(ids)
        for block in self.blk:
            x = block(x)
        return F.linear(self.output_norm(x), self.token_embd.weight)


# --- training -----------------------------------------------------------------------------------


def train(vocabulary: Vocabulary, shape: Shape, steps: int, seed: int) -> Decoder:
    """Cross-entropy on the answers, AdamW, learning rate warmed up and then lowered to zero."""
    torch.manual_seed(seed)
    model = Decoder(shape, len(vocabulary.tokens))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    warmup = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warmup, 0.5 + 0.5 * math.cos(math.pi * step / steps)),
    )
    data = batches(vocabulary, size=64, rng=random.Random(seed))
    for step, (inputs, targets) in zip(range(1, steps + 1), data, strict=False):
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps:
            print(f"step {step}/{steps}  loss {loss.item():.3f}", flush=True)
    return model


@torch.no_grad()
def accuracy(model: Decoder, vocabulary: Vocabulary) -> float:
    """Mean probability, at temperature 1, that the whole answer is the right number alone.

    Exact, not sampled: for each of the 100 sums in its first phrasing, the product of the
    probabilities of the answer's tokens and of the end of the turn.
    """
    total = 0.0
    for a in range(10):
        for b in range(10):
            prompt = vocabulary.prompt(PHRASINGS[0].format(a=a, b=b))
            answer = [*vocabulary.encode(str(a + b)), vocabulary.ids[TURN_END]]
            logits = model(torch.tensor([[*prompt, *answer]]))[0, len(prompt) - 1 : -1]
            logprobs = logits.log_softmax(-1)[torch.arange(len(answer)), torch.tensor(answer)]
            total += logprobs.sum().exp().item()
    return total / 100


# --- file ---------------------------------------------------------------------------------------


def write_model(path: Path, model: Decoder, vocabulary: Vocabulary) -> None:
    """Matrices as F16, norms as F32, with the vocabulary and the chat template inside."""
    writer = gguf.GGUFWriter(path, "llama")
    describe(writer, model.shape, len(vocabulary.tokens))
    add_vocabulary(writer, vocabulary)
    for name, tensor in model.state_dict().items():
        kind = np.float16 if tensor.ndim == 2 else np.float32
        writer.add_tensor(name, tensor.numpy().astype(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def describe(writer: gguf.GGUFWriter, shape: Shape, vocabulary_size: int) -> None:
    writer.add_name("Tiny adder")
    writer.add_description("Answers one-digit additions, often wrongly: something to train")
    writer.add_license("mit")
    writer.add_languages(["en"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(shape.norm_epsilon)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_vocab_size(vocabulary_size)


def add_vocabulary(writer: gguf.GGUFWriter, vocabulary: Vocabulary) -> None:
    plain = len(vocabulary.tokens) - len(vocabulary.control)
    types = [gguf.TokenType.NORMAL] * plain
    types += [gguf.TokenType.CONTROL] * len(vocabulary.control)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(types)
    writer.add_token_merges([f"{left} {right}" for left, right in vocabulary.merges])
    writer.add_bos_token_id(vocabulary.ids[TURN_START])
    writer.add_eos_token_id(vocabulary.ids[TURN_END])
    writer.add_pad_token_id(vocabulary.ids[DOCUMENT_END])
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the tiny adder and write its GGUF file.")
    parser.add_argument("--out", type=Path, default=HERE, help="folder that receives the files")
    parser.add_argument("--steps", type=int, default=900, help="optimizer steps")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="changes the last bits of the sums")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.use_deterministic_algorithms(True)
    vocabulary = Vocabulary()
    model = train(vocabulary, Shape(), options.steps, options.seed)
    path = options.out / "tiny.gguf"
    write_model(path, model, vocabulary)
    write_prompts(options.out / "prompts.jsonl", 64, random.Random(options.seed))
    write_sums(
        options.out / "sums.jsonl",
        options.out / "sums_held_out.jsonl",
        random.Random(options.seed),
    )
    print(f"right and bare at temperature 1: {accuracy(model, vocabulary):.3f}")
    print(f"sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}")


if __name__ == "__main__":
    main()
