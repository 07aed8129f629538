"""Rotary position embedding."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trainer.gguf.families import Pairs
from trainer.gguf.rotary import Rotary


def rotary_angles(rotary: Rotary, factors: Tensor | None, length: int) -> Tensor:
    """Complex numbers (length, size / 2) that turn the pairs of a head by position.

    Pair j at position p turns by p · scale · base^(−2j / size) / factor_j (Su et al., "RoFormer",
    arXiv 2104.09864, eq. 15; the factors are Llama 3's, and those of Ding et al., "LongRoPE", arXiv
    2402.13753, eq. 4) and is multiplied with the amplitude. With YaRN, the scale is a mixture, pair
    by pair (`_stretch`). The angles are formed in F64: an F32 product loses digits that long
    contexts need.
    """
    half = rotary.size // 2
    j = torch.arange(half, dtype=torch.float64)
    frequency = rotary.base ** (-j / half) * _stretch(rotary, j)
    if factors is not None:
        frequency = frequency / factors.cpu().double()
    angles = torch.outer(torch.arange(length, dtype=torch.float64), frequency)
    return torch.polar(torch.full_like(angles, rotary.amplitude), angles).to(torch.complex64)


def _stretch(rotary: Rotary, j: Tensor) -> Tensor | float:
    """What the positions of each pair are multiplied with: the scale, or with YaRN 1 for pairs that
    turn fast, the scale for those that turn slowly, and a ramp between (Peng et al., "YaRN", arXiv
    2309.00071, section 3.2, with llama.cpp's whole numbers for the ramp's ends)."""
    yarn = rotary.yarn
    if yarn is None:
        return rotary.scale

    def pair_that_turns(times: float) -> float:
        turns = math.log(yarn.context / (times * 2 * math.pi))
        return rotary.size * turns / (2 * math.log(rotary.base))

    first = max(0, math.floor(pair_that_turns(yarn.fast)))
    last = min(rotary.size - 1, math.ceil(pair_that_turns(yarn.slow)))
    slow = ((j - first) / max(0.001, last - first)).clamp(0.0, 1.0)
    return rotary.scale * slow + (1.0 - slow)


def rotate(x: Tensor, turn: Tensor, pairs: Pairs) -> Tensor:
    """Turn the first numbers of each head, as many as ``turn`` has pairs for, and leave the rest.

    x (T, heads, d), turn (T, size / 2). ``neighbours`` are the pairs (2j, 2j + 1), ``halves`` the
    pairs (j, j + size / 2).
    """
    size, d = 2 * turn.shape[-1], x.shape[-1]
    if size < d:
        turning, rest = torch.split(x, [size, d - size], dim=-1)
        return torch.cat([rotate(turning, turn, pairs), rest], dim=-1)
    by_head = turn[:, None, :]
    if pairs == "neighbours":
        joined = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(joined * by_head).flatten(-2)
    # Not as complex numbers: to bring the halves together costs more than the products.
    cosine, sine = by_head.real.contiguous(), by_head.imag.contiguous()
    first, second = x.chunk(2, dim=-1)
    turned = (
        torch.addcmul(first * cosine, second, sine, value=-1),
        torch.addcmul(second * cosine, first, sine),
    )
    return torch.cat(turned, dim=-1)
