"""The decoder: hidden states of a packed pass, computed from the file's own tensors."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from trainer.gguf.architecture import Architecture, describe
from trainer.gguf.file import GgufFile
from trainer.gguf.tensors import check_tensors, weight_name
from trainer.model import attention
from trainer.model.adapter import Adapter
from trainer.model.inputs import Preparation, RmsNorm, SwiGlu, Unchanged
from trainer.model.lora import Factors, JoinedLinear, Part
from trainer.model.packing import Pack, pack_text


@dataclass(frozen=True, slots=True)
class _Layer:
    qkv: JoinedLinear
    output: JoinedLinear
    gate_up: JoinedLinear
    down: JoinedLinear


class Decoder:
    """The frozen base model in F32 on one device.

    Nothing here is trained: an adapter is passed to each call, and None means the base alone.
    """

    def __init__(self, file: GgufFile, device: torch.device, *, context: int) -> None:
        self.architecture = describe(file)
        check_tensors(file, self.architecture)
        self.device = device
        a = self.architecture
        self.embedding = _read(file, "token_embd.weight", device)
        self.head = self.embedding if a.tied else _read(file, "output.weight", device)
        self.output_norm = _read(file, "output_norm.weight", device)
        self.layers = [_read_layer(file, a, i, device) for i in range(a.layers)]
        factors = (
            _read(file, "rope_freqs.weight", device)
            if "rope_freqs.weight" in file.tensors
            else None
        )
        self.turns = attention.rotary_angles(a, factors, context).to(device)

    def states(self, pack: Pack, adapter: Adapter | None, *, recompute: bool = False) -> Tensor:
        """The normalised last hidden states (N, width) that predict the pack's answer tokens.

        ``recompute`` keeps only each layer's input for the backward pass and computes the rest
        again (gradient checkpointing): the same results for less memory. Raises ValueError when a
        text of the pack is longer than the decoder's context.
        """
        if pack.longest > len(self.turns):
            raise ValueError(
                f"a text of {pack.longest} tokens exceeds the context {len(self.turns)}"
            )
        x = self.embedding[pack.tokens]
        turn = self.turns[pack.positions]
        factors = adapter.factors if adapter else None
        scale = adapter.scale if adapter else 0.0
        for layer in self.layers:
            if recompute and torch.is_grad_enabled():
                x = checkpoint(
                    self._layer, layer, x, turn, pack, factors, scale, use_reentrant=False
                )
            else:
                x = self._layer(layer, x, turn, pack, factors, scale)
        epsilon = self.architecture.norm_epsilon
        return F.rms_norm(x[pack.states], self.output_norm.shape, self.output_norm, epsilon)

    def logits(self, tokens: Sequence[int], adapter: Adapter | None) -> Tensor:
        """The logits (n, vocabulary) after each token of one text; no gradient."""
        with torch.no_grad():
            return self.states(pack_text(tokens, self.device), adapter) @ self.head.T

    def _layer(
        self,
        layer: _Layer,
        x: Tensor,
        turn: Tensor,
        pack: Pack,
        factors: Mapping[str, Factors] | None,
        scale: float,
    ) -> Tensor:
        qkv = layer.qkv(x, factors, scale)
        x = x + layer.output(self._attention(qkv, turn, pack), factors, scale)
        return x + layer.down(layer.gate_up(x, factors, scale), factors, scale)

    def _attention(self, qkv: Tensor, turn: Tensor, pack: Pack) -> Tensor:
        a = self.architecture
        # split, not slices: a slice's gradient is a tensor of zeros with one part filled.
        heads = qkv.view(len(qkv), -1, a.head_size)
        turning, v = torch.split(heads, [a.heads + a.kv_heads, a.kv_heads], dim=1)
        q, k = torch.split(attention.rotate(turning, turn), [a.heads, a.kv_heads], dim=1)
        if pack.suffixes is None:
            return attention.prefix_attention(q, k, v, a.attention_scale).reshape(len(qkv), -1)
        if pack.prefix == 0:
            nothing = (k[:0], v[:0])
            own = attention.suffix_attention(q, k, v, nothing, pack.suffixes, a.attention_scale)
            return own.reshape(len(qkv), -1)
        parts = [pack.prefix, len(qkv) - pack.prefix]
        (q0, q1), (k0, k1), (v0, v1) = (torch.split(x, parts) for x in (q, k, v))
        # Copies of the prompt's few rows: kept as views they would keep the whole pass's.
        q0, k0, v0 = q0.contiguous(), k0.contiguous(), v0.contiguous()
        before = attention.prefix_attention(q0, k0, v0, a.attention_scale)
        after = attention.suffix_attention(q1, k1, v1, (k0, v0), pack.suffixes, a.attention_scale)
        out = torch.cat([before, after])
        return out.reshape(len(qkv), -1)


def _read(file: GgufFile, name: str, device: torch.device) -> Tensor:
    return torch.from_numpy(file.read(name)).to(device)


def _read_layer(file: GgufFile, a: Architecture, layer: int, device: torch.device) -> _Layer:
    def norm(part: str) -> RmsNorm:
        return RmsNorm(_read(file, weight_name(layer, part), device), a.norm_epsilon)

    def join(prepare: Preparation, *parts: str) -> JoinedLinear:
        return _join(file, layer, parts, prepare, device)

    return _Layer(
        qkv=join(norm("attn_norm"), "attn_q", "attn_k", "attn_v"),
        output=join(Unchanged(), "attn_output"),
        gate_up=join(norm("ffn_norm"), "ffn_gate", "ffn_up"),
        down=join(SwiGlu(), "ffn_down"),
    )


def _join(
    file: GgufFile,
    layer: int,
    parts: Sequence[str],
    prepare: Preparation,
    device: torch.device,
) -> JoinedLinear:
    """Stack matrices by rows, each read straight into its place."""
    infos = [file.tensors[weight_name(layer, part)] for part in parts]
    stops = list(itertools.accumulate(i.shape[0] for i in infos))
    starts = [0, *stops[:-1]]
    weight = torch.empty(stops[-1], infos[0].shape[1])
    for info, start, stop in zip(infos, starts, stops, strict=True):
        file.read(info.name, out=weight[start:stop].numpy())
    rows = tuple(Part(i.name, a, b) for i, a, b in zip(infos, starts, stops, strict=True))
    bias = _join_bias(file, layer, parts, rows, device)
    return JoinedLinear(prepare, weight.to(device), bias, rows)


def _join_bias(
    file: GgufFile, layer: int, parts: Sequence[str], rows: Sequence[Part], device: torch.device
) -> Tensor | None:
    names = [f"blk.{layer}.{part}.bias" for part in parts]
    if not any(name in file.tensors for name in names):
        return None
    bias = torch.zeros(rows[-1].stop)
    for name, row in zip(names, rows, strict=True):
        if name in file.tensors:
            bias[row.start : row.stop] = torch.from_numpy(file.read(name))
    return bias.to(device)
