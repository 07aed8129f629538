"""Reading the layers of a decoder from a file."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from trainer.gguf.architecture import Architecture
from trainer.gguf.families import Activation
from trainer.gguf.file import GgufFile
from trainer.gguf.tensors import weight_name
from trainer.model.experts import ExpertNetworks
from trainer.model.inputs import GeGlu, Preparation, RmsNorm, SwiGlu, Unchanged
from trainer.model.layer import FeedForward, Gated, Layer
from trainer.model.lora import JoinedLinear, Part
from trainer.model.norms import AllHeads, EachHead, HeadNorm, OutputNorm

_GATES: Mapping[Activation, Callable[[], Preparation]] = {"silu": SwiGlu, "gelu": GeGlu}


def read_tensor(file: GgufFile, name: str, device: torch.device) -> Tensor:
    return torch.from_numpy(file.read(name)).to(device)


def read_layer(file: GgufFile, a: Architecture, layer: int, device: torch.device) -> Layer:
    """Layer ``layer`` of the model, its matrices in F32."""
    return _Reader(file, a, layer, device).layer()


class _Reader:
    """One layer's tensors."""

    def __init__(self, file: GgufFile, a: Architecture, layer: int, device: torch.device) -> None:
        self._file = file
        self._a = a
        self._layer = layer
        self._device = device

    def layer(self) -> Layer:
        parts = ("attn_qkv",) if self._a.joined_input else ("attn_q", "attn_k", "attn_v")
        return Layer(
            architecture=self._a,
            kind=self._a.kinds[self._layer],
            qkv=self._join(self._norm_before("attn_norm"), *parts),
            head_norm=self._head_norm(),
            output=self._join(Unchanged(), "attn_output"),
            output_norm=self._norm_after("post_attention_norm"),
            feed_forward=self._experts() if self._a.experts else self._gated(),
            feed_forward_norm=self._norm_after("post_ffw_norm"),
        )

    def _weight(self, part: str) -> Tensor:
        return read_tensor(self._file, weight_name(self._layer, part), self._device)

    def _norm_before(self, part: str) -> Preparation:
        if self._a.family.norms == "after":
            return Unchanged()
        return RmsNorm(self._weight(part), self._a.norm_epsilon)

    def _norm_after(self, part: str) -> OutputNorm | None:
        if self._a.family.norms == "before":
            return None
        return OutputNorm(self._weight(part), self._a.norm_epsilon)

    def _head_norm(self) -> HeadNorm | None:
        a = self._a
        if a.family.head_norms == "none":
            return None
        query, key = self._weight("attn_q_norm"), self._weight("attn_k_norm")
        if a.family.head_norms == "whole":
            return AllHeads(query, key, a.norm_epsilon)
        rows = [query.expand(a.heads, -1), key.expand(a.kv_heads, -1)]
        return EachHead(torch.cat(rows), a.norm_epsilon)

    def _gated(self) -> FeedForward:
        parts = ("ffn_up",) if self._a.family.joined_gate else ("ffn_gate", "ffn_up")
        gate = _GATES[self._a.family.activation]()
        return Gated(
            gate_up=self._join(self._norm_before("ffn_norm"), *parts),
            down=self._join(gate, "ffn_down"),
        )

    def _experts(self) -> FeedForward:
        assert self._a.experts
        gate = _GATES[self._a.family.activation]()
        parts = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
        return ExpertNetworks(
            norm=OutputNorm(self._weight("ffn_norm"), self._a.norm_epsilon),
            router=self._weight("ffn_gate_inp"),
            used=self._a.experts.used,
            gate_up=self._join_experts(Unchanged(), *parts[:2]),
            down=self._join_experts(gate, parts[2]),
            tensors=tuple(weight_name(self._layer, part) for part in parts),
        )

    def _join(self, prepare: Preparation, *parts: str) -> JoinedLinear:
        """Stack matrices by rows, each read straight into its place."""
        infos = [self._file.tensors[weight_name(self._layer, part)] for part in parts]
        rows = _rows([info.name for info in infos], [info.shape[0] for info in infos])
        weight = torch.empty(rows[-1].stop, infos[0].shape[1])
        for row in rows:
            self._file.read(row.name, out=weight[row.start : row.stop].numpy())
        bias = self._join_bias(parts, rows)
        return JoinedLinear(prepare, weight.to(self._device), bias, rows)

    def _join_bias(self, parts: Sequence[str], rows: Sequence[Part]) -> Tensor | None:
        names = [f"blk.{self._layer}.{part}.bias" for part in parts]
        if not any(name in self._file.tensors for name in names):
            return None
        bias = torch.zeros(rows[-1].stop)
        for name, row in zip(names, rows, strict=True):
            if name in self._file.tensors:
                bias[row.start : row.stop] = torch.from_numpy(self._file.read(name))
        return bias.to(self._device)

    def _join_experts(self, prepare: Preparation, *parts: str) -> tuple[JoinedLinear, ...]:
        """For each expert its matrices of ``parts``, stacked by rows."""
        names = [weight_name(self._layer, part) for part in parts]
        whole = torch.cat([self._weight(part) for part in parts], dim=1)
        heights = [self._file.tensors[name].shape[1] for name in names]
        return tuple(
            JoinedLinear(prepare, weight, None, _rows([f"{n}[{e}]" for n in names], heights))
            for e, weight in enumerate(whole)
        )


def _rows(names: Sequence[str], heights: Sequence[int]) -> tuple[Part, ...]:
    stops = list(itertools.accumulate(heights))
    starts = [0, *stops[:-1]]
    return tuple(Part(*part) for part in zip(names, starts, stops, strict=True))
