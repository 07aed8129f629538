"""Rotary embedding by hand."""

from __future__ import annotations

from dataclasses import replace

import torch

from trainer.gguf.architecture import describe
from trainer.gguf.file import GgufFile
from trainer.model.rotary import rotary_angles, rotate


def test_neighbouring_pairs_turn():
    # one head of four: pair (1, 0) turned by a right angle, pair (0, 2) by half a turn
    x = torch.tensor([[[1.0, 0.0, 0.0, 2.0]]])
    turn = torch.tensor([[1j, -1.0 + 0j]])
    expected = torch.tensor([[[0.0, 1.0, 0.0, -2.0]]])
    torch.testing.assert_close(rotate(x, turn, "neighbours"), expected)


def test_halves_turn():
    # the same two pairs, with their second numbers in the second half of the head
    x = torch.tensor([[[1.0, 0.0, 0.0, 2.0]]])
    turn = torch.tensor([[1j, -1.0 + 0j]])
    torch.testing.assert_close(rotate(x, turn, "halves"), torch.tensor([[[0.0, 0.0, 1.0, -2.0]]]))


def test_what_is_beyond_the_rotary_size_stays():
    x = torch.tensor([[[1.0, 0.0, 5.0, 6.0]]])
    turned = rotate(x, torch.tensor([[1j]]), "halves")
    torch.testing.assert_close(turned, torch.tensor([[[0.0, 1.0, 5.0, 6.0]]]))


def test_angles_by_hand(random_llama):
    """Heads of four: pair 0 turns by p and pair 1 by p / 100, with base 10000."""
    [rotary] = describe(GgufFile(random_llama(heads=4, kv_heads=2, head_size=4))).rotaries
    plain = rotary_angles(rotary, None, 5)
    p = torch.arange(5.0)
    torch.testing.assert_close(plain[:, 0], torch.complex(p.cos(), p.sin()))
    torch.testing.assert_close(plain[:, 1].angle(), p / 100, rtol=0, atol=1e-6)
    slower = rotary_angles(rotary, torch.tensor([2.0, 4.0]), 5)
    torch.testing.assert_close(slower[2].angle(), torch.tensor([1.0, 0.005]), rtol=0, atol=1e-6)
    larger = rotary_angles(replace(rotary, amplitude=1.5), None, 5)
    torch.testing.assert_close(larger, plain * 1.5)
