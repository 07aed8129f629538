"""``retrograd merge``"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from app.cli.errors import Debug, reported, say
from app.rows import print_rows
from app.text import neutralise, size

if TYPE_CHECKING:
    from trainer.merge.compare import Comparison
    from trainer.merge.merging import Stage
    from trainer.merge.plan import Plan

_STAGES = {"add": "adding the adapter", "write": "writing the types"}


def merge(
    base: Annotated[Path, typer.Argument(help="The model that the adapter was trained on.")],
    adapter: Annotated[Path, typer.Argument(help="A LoRA adapter (GGUF).")],
    to: Annotated[Path, typer.Option("--to", help="The file that receives the merged model.")],
    kind: Annotated[
        str,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="f32, f16, bf16, q8_0, q6_k, q5_k_m, q4_k_m or another of llama.cpp's types; same "
            "keeps that of each tensor.",
        ),
    ] = "f16",
    force: Annotated[
        bool, typer.Option("--force", help="Replace the file that is there already.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option(help="Have llama.cpp compare the result with base and adapter."),
    ] = True,
    debug: Debug = False,
) -> None:
    """Write base and adapter as one model that needs no second file."""
    with reported(debug):
        from trainer.merge.compare import compare
        from trainer.merge.merging import merge as merge_files
        from trainer.merge.plan import check_disk, check_target, check_type, make_plan
        from trainer.sizing import default_threads

        wanted, threads = kind.lower(), default_threads()
        check_type(wanted)
        check_target(to, base, adapter, force=force)
        plan = make_plan(base, adapter, wanted)
        check_disk(plan.disk_bytes, to.parent)
        _say_fallbacks(plan)
        with _shown() as told:
            compared = merge_files(
                plan,
                to,
                lambda path: compare(plan, path, threads=threads) if check else None,
                threads=threads,
                told=told,
            )
        _print(plan, to, compared)
        if compared is not None and compared.gap > compared.change:
            say(
                f"In this type the model loses more than the adapter has changed: {plan.type} is "
                f"too coarse for what was learnt. Use f16, or q8_0.",
            )


def _say_fallbacks(plan: Plan) -> None:
    """That some tensors get another type than the one asked for, and why."""
    if not plan.fallbacks:
        return
    found: dict[tuple[str, str, int], int] = {}
    for one in plan.fallbacks:
        key = (one.wanted, one.got, one.columns)
        found[key] = found.get(key, 0) + 1
    words = "; ".join(
        f"{count} with rows of {columns:,} get {got} and not {wanted}"
        for (wanted, got, columns), count in found.items()
    )
    say(
        f"Not every row fills whole blocks of {plan.type}, so llama.cpp gives some matrices "
        f"another type: {neutralise(words)}.",
    )


@contextmanager
def _shown() -> Iterator[Stage]:
    """A bar for whoever watches; nothing where nobody does."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f}%"))
    with Progress(*columns, console=console, transient=True) as progress:
        tasks = {stage: progress.add_task(words) for stage, words in _STAGES.items()}

        def told(stage: str, done: int, total: int) -> None:
            progress.update(tasks[stage], completed=done, total=total)

        yield told


def _print(plan: Plan, to: Path, compared: Comparison | None) -> None:
    rows = [
        ("model", f"{to} ({size(to.stat().st_size)})"),
        ("base", str(plan.factors.base.path)),
        ("adapter", f"{plan.factors.file.path}: {len(plan.factors.targets)} matrices"),
        ("type", plan.type),
    ]
    if compared is not None:
        rows.append(("compared", _words(compared)))
    rows.append(("use it", f"llama-cli -m {to}"))
    print_rows([(Text(label, "dim"), Text(neutralise(value))) for label, value in rows])


def _words(compared: Comparison) -> str:
    words = (
        f"log-probabilities differ by {compared.gap:.2g} nats from base and adapter, which differ "
        f"by {compared.change:.2g} from the base alone (mean over {compared.tokens} tokens of a "
        f"text)"
    )
    if not compared.exact:
        words += "; some hundredths are llama.cpp's 8-bit products with quantised weights"
    return words
