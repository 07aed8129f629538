"""``retrograd inspect``"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from app.cli.errors import Debug, reported
from app.rows import print_rows
from app.text import counted, neutralise, size

if TYPE_CHECKING:
    from trainer.gguf.architecture import Architecture
    from trainer.gguf.inspect import AdapterFacts, FileReport


def inspect(
    file: Annotated[Path, typer.Argument(help="A GGUF file: a model or an adapter.")],
    debug: Debug = False,
) -> None:
    """Describe a GGUF file, and say whether retrograd can train on it."""
    with reported(debug):
        from trainer.gguf.inspect import inspect_file

        report = inspect_file(file)
        print_rows(
            [(Text(label, "dim"), Text(neutralise(value))) for label, value in _rows(report)]
        )


def _rows(report: FileReport) -> Iterator[tuple[str, str]]:
    yield "file", f"{report.path} ({size(report.file_bytes)})"
    yield "kind", report.kind
    yield "name", report.name or "none"
    yield "architecture", report.architecture
    yield "parameters", f"{report.parameters:,}"
    yield from report.sizes.items()
    if report.decoder is not None:
        from trainer.gguf.words import in_words

        yield from in_words(report.decoder).items()
    for index, (kind, count) in enumerate(sorted(report.types.items(), key=lambda item: -item[1])):
        yield "tensors" if index == 0 else "", f"{count:>5} × {kind}"
    if report.adapter is not None:
        yield from _adapter_rows(report.adapter)
        return
    if report.decoder is not None:
        yield from _training_rows(report, report.decoder)
    yield "chat template", "yes" if report.chat_template else "no"
    special = (f"{use} {text!r} ({token})" for use, (token, text) in report.special.items())
    yield "special tokens", ", ".join(special) or "none"
    yield "can be trained on", "yes" if report.supported else f"no: {report.reason}"


def _training_rows(report: FileReport, decoder: Architecture) -> Iterator[tuple[str, str]]:
    """What can be trained, and what that takes."""
    from trainer.sizing import activation_bytes, cache_bytes, trained_weights_bytes

    for index, (name, shape) in enumerate(report.candidates.items()):
        extent = " × ".join(f"{n:,}" for n in shape)
        yield "can be adapted" if index == 0 else "", f"{name}: {extent}"
    yield "memory to train", f"{size(trained_weights_bytes(decoder))} for the base in F32"
    row = activation_bytes(decoder, 1, recompute=False)
    less = activation_bytes(decoder, 1, recompute=True)
    yield "", f"{size(row)} for a token of a pass ({size(less)} with gradient_checkpointing)"
    cell = cache_bytes(decoder, 1, exact=False)
    yield "memory to sample", f"{size(cell)} for a token of the cache"


def _adapter_rows(adapter: AdapterFacts) -> Iterator[tuple[str, str]]:
    low, high = adapter.rank
    yield "adapter", adapter.kind
    yield "rank", f"{low}" if low == high else f"{low} to {high}"
    if not adapter.alpha:
        yield "alpha", "none, which llama.cpp reads as a scale of 1"
    elif low == high:
        yield "alpha", f"{adapter.alpha:g} (scale {adapter.alpha / low:g})"
    else:
        yield "alpha", f"{adapter.alpha:g} (scale {adapter.alpha:g} / rank)"
    targets = (f"{name} in {counted(count, 'layer')}" for name, count in adapter.targets.items())
    yield "targets", ", ".join(targets)
