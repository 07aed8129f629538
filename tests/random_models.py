"""Random-weight models of odd shapes, written as any converter would write them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

SPECIAL = ("<|end|>", "<|user|>", "<|bot|>")
TEMPLATE = (
    "{% for m in messages %}"
    "{{ '<|bot|>' if m['role'] == 'assistant' else '<|user|>' }}{{ m['content'] }}<|end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|bot|>{% endif %}"
)


Value = bool | int | float | str | list[bool] | list[int]
ATTENTION_INPUT = ("attn_q", "attn_k", "attn_v", "attn_qkv")


@dataclass(frozen=True)
class RandomModel:
    """``extra`` adds metadata, and ``own`` such whose keys begin with the architecture's name;
    ``drop`` leaves tensors out. ``embedding`` is the deviation of the embedding's numbers.
    ``biases`` of True are those of all matrices. ``head_norms`` stand over ``each`` head or the
    ``whole`` of them. ``experts`` are their count, how many are used, and their width.
    ``length_factors`` writes two tensors of rotary factors, for short and for long contexts.
    ``template`` is the chat template.
    """

    layers: int = 2
    width: int = 64
    ff_width: int = 96
    heads: int = 8
    kv_heads: int = 2
    head_size: int = 8
    rotary_size: int = 0
    tied: bool = False
    embedding: float = 1.0
    rope_factors: bool = False
    length_factors: bool = False
    biases: bool | tuple[str, ...] = False
    norms: tuple[str, ...] = ("attn_norm", "ffn_norm")
    head_norms: str = ""
    joined: bool = False
    joined_gate: bool = False
    experts: tuple[int, int, int] | None = None
    rope_scale: float | None = None
    context: int = 256
    seed: int = 0
    architecture: str = "llama"
    extra: tuple[tuple[str, Value], ...] = ()
    own: tuple[tuple[str, Value], ...] = ()
    drop: tuple[str, ...] = ()
    template: str = TEMPLATE

    def matrices(self) -> dict[str, tuple[int, ...]]:
        query, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        whole: dict[str, tuple[int, ...]] = {
            "attn_qkv": (query + 2 * kv, self.width),
            "attn_q": (query, self.width),
            "attn_k": (kv, self.width),
            "attn_v": (kv, self.width),
            "attn_output": (self.width, query),
        }
        left_out = ("attn_q", "attn_k", "attn_v") if self.joined else ("attn_qkv",)
        attention = {part: shape for part, shape in whole.items() if part not in left_out}
        return attention | self._feed_forward()

    def _feed_forward(self) -> dict[str, tuple[int, ...]]:
        if self.experts:
            count, _, inner = self.experts
            return {
                "ffn_gate_inp": (count, self.width),
                "ffn_gate_exps": (count, inner, self.width),
                "ffn_up_exps": (count, inner, self.width),
                "ffn_down_exps": (count, self.width, inner),
            }
        down = {"ffn_down": (self.width, self.ff_width)}
        if self.joined_gate:
            return {"ffn_up": (2 * self.ff_width, self.width), **down}
        both = dict.fromkeys(("ffn_gate", "ffn_up"), (self.ff_width, self.width))
        return {**both, **down}

    def vectors(self) -> dict[str, int]:
        """The norms of a layer, with their widths."""
        found = dict.fromkeys(self.norms, self.width)
        if self.head_norms:
            each = self.head_norms == "each"
            found["attn_q_norm"] = self.head_size * (1 if each else self.heads)
            found["attn_k_norm"] = self.head_size * (1 if each else self.kv_heads)
        return found

    def has_bias(self, part: str) -> bool:
        return self.biases if isinstance(self.biases, bool) else part in self.biases


AROUND = ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm")

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"biases": ATTENTION_INPUT},
    "qwen3": {"head_norms": "each", "head_size": 16},
    "qwen3moe": {"head_norms": "each", "head_size": 16, "experts": (6, 2, 32)},
    "gemma2": {
        "norms": AROUND,
        "tied": True,
        "embedding": 0.125,
        "own": (
            ("attention.sliding_window", 8),
            ("attn_logit_softcapping", 2.0),
            ("final_logit_softcapping", 6.0),
        ),
    },
    "gemma3": {
        "norms": AROUND,
        "head_norms": "each",
        "tied": True,
        "embedding": 0.125,
        "rope_scale": 4.0,
        "own": (
            ("attention.sliding_window", 8),
            ("attention.sliding_window_pattern", [True, False]),
            ("rope.freq_base_swa", 500.0),
        ),
    },
    "phi3": {
        "joined": True,
        "joined_gate": True,
        "length_factors": True,
        "head_size": 8,
        "rotary_size": 6,
        "own": (
            ("rope.scaling.type", "longrope"),
            ("rope.scaling.attn_factor", 1.2),
            ("rope.scaling.original_context_length", 100),
        ),
    },
    "smollm3": {"layers": 4, "tied": True, "embedding": 0.125},
    "olmo2": {"norms": AROUND[2:], "head_norms": "whole"},
    "granite": {
        "tied": True,
        "embedding": 0.125,
        "own": (
            ("embedding_scale", 6.0),
            ("residual_scale", 0.4),
            ("attention.scale", 0.3),
            ("logit_scale", 4.0),
        ),
    },
}
"""What a random model of each architecture has that a llama has not. Windows and limits are so
small that short texts of random models feel them."""


def byte_vocabulary() -> list[str]:
    """The 256 byte tokens of a gpt2 vocabulary, one merge, and the control tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = {b: chr(b) for b in printable}
    others = (b for b in range(256) if b not in names)
    names |= {b: chr(256 + i) for i, b in enumerate(others)}
    return [*(names[b] for b in range(256)), "in", *SPECIAL]


def write_random_model(path: Path, spec: RandomModel) -> Path:
    writer = gguf.GGUFWriter(str(path), spec.architecture)
    _write_metadata(writer, spec)
    rng = np.random.default_rng(spec.seed)
    tokens = len(byte_vocabulary())

    def add(name: str, *shape: int, scale: float = 1.0, centre: float = 0.0) -> None:
        if name not in spec.drop:
            values = centre + rng.standard_normal(shape) * scale
            writer.add_tensor(name, values.astype(np.float32))

    add("token_embd.weight", tokens, spec.width, scale=spec.embedding)
    for i in range(spec.layers):
        for part, width in spec.vectors().items():
            add(f"blk.{i}.{part}.weight", width, scale=0.1, centre=1.0)
        for part, shape in spec.matrices().items():
            add(f"blk.{i}.{part}.weight", *shape, scale=max(shape[-1], 1) ** -0.5)
            if spec.has_bias(part):
                add(f"blk.{i}.{part}.bias", shape[0], scale=0.1)
    add("output_norm.weight", spec.width, scale=0.1, centre=1.0)
    if not spec.tied:
        add("output.weight", tokens, spec.width, scale=spec.width**-0.5)
    _write_factors(writer, spec)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_factors(writer: gguf.GGUFWriter, spec: RandomModel) -> None:
    pairs = (spec.rotary_size or spec.head_size) // 2
    ends = {"rope_freqs": 8.0} if spec.rope_factors else {}
    if spec.length_factors:
        ends |= {"rope_factors_short": 1.5, "rope_factors_long": 16.0}
    for name, end in ends.items():
        writer.add_tensor(f"{name}.weight", np.linspace(1.0, end, pairs).astype(np.float32))


def _write_metadata(writer: gguf.GGUFWriter, spec: RandomModel) -> None:
    writer.add_name("random")
    writer.add_block_count(spec.layers)
    writer.add_context_length(spec.context)
    writer.add_embedding_length(spec.width)
    writer.add_feed_forward_length(spec.ff_width)
    writer.add_head_count(spec.heads)
    writer.add_head_count_kv(spec.kv_heads)
    writer.add_key_length(spec.head_size)
    writer.add_value_length(spec.head_size)
    writer.add_rope_dimension_count(spec.rotary_size or spec.head_size)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    if spec.rope_scale:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(spec.rope_scale)
    tokens = byte_vocabulary()
    control = [gguf.TokenType.CONTROL] * len(SPECIAL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * (len(tokens) - len(SPECIAL)) + control)
    writer.add_token_merges(["i n"])
    writer.add_eos_token_id(tokens.index("<|end|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(spec.template)
    if spec.experts:
        count, used, width = spec.experts
        writer.add_expert_count(count)
        writer.add_expert_used_count(used)
        writer.add_expert_feed_forward_length(width)
    own = ((f"{spec.architecture}.{key}", value) for key, value in spec.own)
    for key, value in (*spec.extra, *own):
        _add_value(writer, key, value)


def _add_value(writer: gguf.GGUFWriter, key: str, value: Value) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)
