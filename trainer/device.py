"""Where torch computes, and how it uses memory there."""

from __future__ import annotations

import ctypes
import sys
from typing import Literal

import torch

from trainer.errors import ConfigError

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_KEEP_BYTES = 1 << 30


def choose_device(choice: Literal["auto", "cpu", "gpu"]) -> torch.device:
    """``auto``: CUDA, then Apple's MPS, then the CPU.

    Raises ConfigError for ``gpu`` where torch sees none.
    """
    if choice != "cpu":
        if torch.cuda.is_available():
            return torch.device("cuda")
        if torch.backends.mps.is_available():
            return torch.device("mps")
    if choice == "gpu":
        raise ConfigError(
            '[model] device = "gpu": torch sees neither a CUDA nor an Apple GPU. Install a torch '
            'build for your GPU, or set device = "auto".'
        )
    return torch.device("cpu")


def keep_freed_pages() -> None:
    """Tell glibc to reuse the memory of freed tensors and not return it to the system.

    A training pass allocates and frees the same large tensors again and again; by default each
    goes through mmap, and the kernel fills its pages with zeros every time. Does nothing where
    the C library is another.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES)
