"""The decoder: hidden states of a packed pass, computed from the file's own tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from trainer.gguf.architecture import Architecture, describe, long_texts
from trainer.gguf.file import GgufFile
from trainer.gguf.tensors import check_tensors, factor_names
from trainer.model.adapter import Adapter
from trainer.model.logprobs import soft_cap
from trainer.model.packing import Pack, pack_text
from trainer.model.rotary import rotary_angles
from trainer.model.weights import read_layer, read_tensor


class Decoder:
    """The frozen base model in F32 on one device, for texts of up to ``context`` tokens.

    Nothing here is trained: an adapter is passed to each call, and None means the base alone.
    """

    def __init__(self, file: GgufFile, device: torch.device, *, context: int) -> None:
        self.architecture = a = describe(file)
        check_tensors(file, a)
        self.device = device
        self.context = context
        self.embedding = read_tensor(file, "token_embd.weight", device)
        self.head = self.embedding if a.tied else read_tensor(file, "output.weight", device)
        # The logits are linear in the states, so the norm's weight can carry their scale.
        self.output_norm = read_tensor(file, "output_norm.weight", device) * a.scales.logits
        self.layers = [read_layer(file, a, i, device) for i in range(a.layers)]
        factors = _rotary_factors(file, a, context)
        self.turns = {
            rotary: rotary_angles(rotary, factors if rotary.factors else None, context).to(device)
            for rotary in a.rotaries
        }

    def states(self, pack: Pack, adapter: Adapter | None, *, recompute: bool = False) -> Tensor:
        """The normalised last hidden states (N, width) that predict the pack's answer tokens.

        ``recompute`` keeps only each layer's input for the backward pass and computes the rest
        again (gradient checkpointing): the same results for less memory. Raises ValueError when a
        text of the pack is longer than the decoder's context.
        """
        if pack.longest > self.context:
            raise ValueError(f"a text of {pack.longest} tokens exceeds the context {self.context}")
        x = self.embedding[pack.tokens] * self.architecture.scales.embedding
        turns = {rotary: angles[pack.positions] for rotary, angles in self.turns.items()}
        factors = adapter.factors if adapter else None
        scale = adapter.scale if adapter else 0.0
        for layer in self.layers:
            if recompute and torch.is_grad_enabled():
                x = checkpoint(layer, x, turns, pack, factors, scale, use_reentrant=False)
            else:
                x = layer(x, turns, pack, factors, scale)
        epsilon = self.architecture.norm_epsilon
        return F.rms_norm(x[pack.states], self.output_norm.shape, self.output_norm, epsilon)

    def logits(self, tokens: Sequence[int], adapter: Adapter | None) -> Tensor:
        """The logits (n, vocabulary) after each token of one text; no gradient."""
        with torch.no_grad():
            raw = self.states(pack_text(tokens, self.device), adapter) @ self.head.T
            return soft_cap(raw, self.architecture.scales.logit_cap)


def _rotary_factors(file: GgufFile, a: Architecture, context: int) -> Tensor | None:
    names = factor_names(a)
    if not names:
        return None
    name = names[-1] if long_texts(a, context) else names[0]
    return torch.from_numpy(file.read(name)) if name in file.tensors else None
