"""What TensorBoard finds in a folder of event files: read by its own reader."""

from __future__ import annotations

import sys
from pathlib import Path

# Where `make venv` puts the reader. It comes last: a TensorBoard that is installed goes first.
sys.path.append(str(Path(sys.prefix) / "share" / "tensorboard-reader"))

from tensorboard.backend.event_processing.event_accumulator import (
    EventAccumulator,
)

EVERYTHING = 0


def read(folder: Path) -> EventAccumulator:
    sizes = {"scalars": EVERYTHING, "tensors": EVERYTHING}
    return EventAccumulator(str(folder), size_guidance=sizes).Reload()


def curve(folder: Path, name: str) -> list[tuple[int, float]]:
    """(step, value) in the order in which they are drawn."""
    return [(point.step, point.value) for point in read(folder).Scalars(name)]


def texts(folder: Path, tag: str) -> dict[int, str]:
    """By step."""
    found = read(folder).Tensors(f"{tag}/text_summary")
    return {one.step: one.tensor_proto.string_val[0].decode() for one in found}
