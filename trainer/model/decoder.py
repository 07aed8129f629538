"""The decoder: hidden states of a packed pass, computed from the file's own tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from trainer.gguf.architecture import describe
from trainer.gguf.file import GgufFile
from trainer.gguf.tensors import check_tensors, weight_name
from trainer.model import layers
from trainer.model.adapter import Adapter
from trainer.model.lora import Factors, JoinedLinear, Part
from trainer.model.packing import Pack, pack_text


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: Tensor
    qkv: JoinedLinear
    output: JoinedLinear
    feed_forward_norm: Tensor
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
        self.layers = [_read_layer(file, i, device) for i in range(a.layers)]
        factors = (
            _read(file, "rope_freqs.weight", device)
            if "rope_freqs.weight" in file.tensors
            else None
        )
        self.turns = layers.rotary_angles(a, factors, context).to(device)

    def states(self, pack: Pack, adapter: Adapter | None, *, recompute: bool = False) -> Tensor:
        """The normalised last hidden states (N, width) that predict the pack's answer tokens.

        ``recompute`` keeps only each layer's input for the backward pass and computes the rest
        again (gradient checkpointing): the same results for less memory.
        """
        if int(pack.positions[-1]) >= len(self.turns) or pack.prefix > len(self.turns):
            raise ValueError(f"a pack of {pack.rows} rows exceeds the context {len(self.turns)}")
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
        return self._norm(x[pack.states], self.output_norm)

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
        qkv = layer.qkv(self._norm(x, layer.attention_norm), factors, scale)
        x = x + layer.output(self._attention(qkv, turn, pack), factors, scale)
        joined = layer.gate_up(self._norm(x, layer.feed_forward_norm), factors, scale)
        return x + layer.down(layers.swiglu(joined), factors, scale)

    def _attention(self, qkv: Tensor, turn: Tensor, pack: Pack) -> Tensor:
        a = self.architecture
        # split, not slices: a slice's gradient is a tensor of zeros with one part filled.
        heads = qkv.view(len(qkv), -1, a.head_size)
        turning, v = torch.split(heads, [a.heads + a.kv_heads, a.kv_heads], dim=1)
        q, k = torch.split(layers.rotate(turning, turn), [a.heads, a.kv_heads], dim=1)
        if pack.suffixes is None:
            return layers.prefix_attention(q, k, v, a.attention_scale).reshape(len(qkv), -1)
        parts = [pack.prefix, len(qkv) - pack.prefix]
        (q0, q1), (k0, k1), (v0, v1) = (torch.split(x, parts) for x in (q, k, v))
        before = layers.prefix_attention(q0, k0, v0, a.attention_scale)
        after = layers.suffix_attention(q1, k1, v1, (k0, v0), pack.suffixes, a.attention_scale)
        out = torch.cat([before, after])
        return out.reshape(len(qkv), -1)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return layers.rms_norm(x, weight, self.architecture.norm_epsilon)


def _read(file: GgufFile, name: str, device: torch.device) -> Tensor:
    return torch.from_numpy(file.read(name)).to(device)


def _read_layer(file: GgufFile, layer: int, device: torch.device) -> _Layer:
    def norm(part: str) -> Tensor:
        return _read(file, weight_name(layer, part), device)

    return _Layer(
        attention_norm=norm("attn_norm"),
        qkv=_join(file, layer, ("attn_q", "attn_k", "attn_v"), device),
        output=_join(file, layer, ("attn_output",), device),
        feed_forward_norm=norm("ffn_norm"),
        gate_up=_join(file, layer, ("ffn_gate", "ffn_up"), device),
        down=_join(file, layer, ("ffn_down",), device),
    )


def _join(file: GgufFile, layer: int, parts: Sequence[str], device: torch.device) -> JoinedLinear:
    """Stack matrices by rows, each read straight into its place."""
    infos = [file.tensors[weight_name(layer, part)] for part in parts]
    stops = torch.tensor([i.shape[0] for i in infos]).cumsum(0).tolist()
    starts = [0, *stops[:-1]]
    weight = torch.empty(stops[-1], infos[0].shape[1])
    for info, start, stop in zip(infos, starts, stops, strict=True):
        file.read(info.name, out=weight[start:stop].numpy())
    rows = tuple(Part(i.name, a, b) for i, a, b in zip(infos, starts, stops, strict=True))
    return JoinedLinear(weight.to(device), _join_bias(file, layer, parts, rows, device), rows)


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
