"""Random-weight models of odd shapes, written as any converter would write them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

SPECIAL = ("<|end|>", "<|user|>", "<|bot|>")
TEMPLATE = (
    "{% for m in messages %}"
    "{{ '<|bot|>' if m['role'] == 'assistant' else '<|user|>' }}{{ m['content'] }}<|end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|bot|>{% endif %}"
)


@dataclass(frozen=True)
class RandomLlama:
    """``extra`` adds metadata; ``drop`` leaves tensors out; ``architecture`` renames it all."""

    layers: int = 2
    width: int = 64
    ff_width: int = 96
    heads: int = 8
    kv_heads: int = 2
    head_size: int = 8
    tied: bool = False
    rope_factors: bool = False
    biases: bool = False
    rope_scale: float | None = None
    context: int = 256
    seed: int = 0
    architecture: str = "llama"
    extra: tuple[tuple[str, int | str], ...] = ()
    drop: tuple[str, ...] = ()

    def matrices(self) -> dict[str, tuple[int, int]]:
        query, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        return {
            "attn_q": (query, self.width),
            "attn_k": (kv, self.width),
            "attn_v": (kv, self.width),
            "attn_output": (self.width, query),
            "ffn_gate": (self.ff_width, self.width),
            "ffn_up": (self.ff_width, self.width),
            "ffn_down": (self.width, self.ff_width),
        }


def byte_vocabulary() -> list[str]:
    """The 256 byte tokens of a gpt2 vocabulary, one merge, and the control tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = {b: chr(b) for b in printable}
    others = (b for b in range(256) if b not in names)
    names |= {b: chr(256 + i) for i, b in enumerate(others)}
    return [*(names[b] for b in range(256)), "in", *SPECIAL]


def write_random_llama(path: Path, spec: RandomLlama) -> Path:
    writer = gguf.GGUFWriter(str(path), spec.architecture)
    _write_metadata(writer, spec)
    rng = np.random.default_rng(spec.seed)
    tokens = len(byte_vocabulary())

    def add(name: str, *shape: int, scale: float = 1.0, centre: float = 0.0) -> None:
        if name not in spec.drop:
            values = centre + rng.standard_normal(shape) * scale
            writer.add_tensor(name, values.astype(np.float32))

    add("token_embd.weight", tokens, spec.width)
    for i in range(spec.layers):
        add(f"blk.{i}.attn_norm.weight", spec.width, scale=0.1, centre=1.0)
        add(f"blk.{i}.ffn_norm.weight", spec.width, scale=0.1, centre=1.0)
        for part, (rows, columns) in spec.matrices().items():
            add(f"blk.{i}.{part}.weight", rows, columns, scale=columns**-0.5)
            if spec.biases:
                add(f"blk.{i}.{part}.bias", rows, scale=0.1)
    add("output_norm.weight", spec.width, scale=0.1, centre=1.0)
    if not spec.tied:
        add("output.weight", tokens, spec.width, scale=spec.width**-0.5)
    if spec.rope_factors:
        writer.add_tensor(
            "rope_freqs.weight", np.linspace(1.0, 8.0, spec.head_size // 2).astype(np.float32)
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_metadata(writer: gguf.GGUFWriter, spec: RandomLlama) -> None:
    writer.add_name("random")
    writer.add_block_count(spec.layers)
    writer.add_context_length(spec.context)
    writer.add_embedding_length(spec.width)
    writer.add_feed_forward_length(spec.ff_width)
    writer.add_head_count(spec.heads)
    writer.add_head_count_kv(spec.kv_heads)
    writer.add_key_length(spec.head_size)
    writer.add_value_length(spec.head_size)
    writer.add_rope_dimension_count(spec.head_size)
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
    writer.add_chat_template(TEMPLATE)
    for key, value in spec.extra:
        add = writer.add_string if isinstance(value, str) else writer.add_uint32
        add(key, value)  # type: ignore[operator]
