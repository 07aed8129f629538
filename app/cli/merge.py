"""``retrograd merge``"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from app.cli.errors import Debug, reported, say
from app.cli.replacing import Force
from app.rows import print_rows
from app.text import neutralise, size

if TYPE_CHECKING:
    from trainer.merge.compare import Comparison
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
    force: Force = False,
    check: Annotated[
        bool,
        typer.Option(help="Have llama.cpp compare the result with base and adapter."),
    ] = True,
    debug: Debug = False,
) -> None:
    """Write base and adapter as one model that needs no second file."""
    with reported(debug):
        from app.terminal.progress import ProgressMonitor
        from trainer.merge.compare import compare
        from trainer.merge.merging import merge as merge_files
        from trainer.merge.plan import check_disk, check_type, make_plan
        from trainer.sizing import default_threads

        wanted, threads = kind.lower(), default_threads()
        check_type(wanted, "--type")
        check_target(to, base, adapter, force=force)
        plan = make_plan(base, adapter, wanted, where="--type")
        check_disk(plan.disk_bytes, to.parent)
        _say_fallbacks(plan)
        with ProgressMonitor(words=_STAGES) as shown:
            compared = merge_files(
                plan,
                to,
                lambda path: compare(plan, path, threads=threads) if check else None,
                threads=threads,
                told=shown.progress,
            )
        _print(plan, to, compared)
        if compared is not None and not compared.is_met:
            say(
                f"In this type the model misses what was learnt by {compared.gap:.2g} nats, and "
                f"the adapter changes {compared.change:.2g}: {plan.type} is too coarse. Use f16, "
                f"or q8_0.",
            )


def check_target(target: Path, base: Path, adapter: Path, *, force: bool) -> None:
    """See that the result has a place of its own; makes the folder. Raises ConfigError."""
    from trainer.errors import ConfigError

    for other in (base, adapter):
        if target.resolve() == other.resolve() or _same_file(target, other):
            raise ConfigError(
                f"{target}: is {other} itself, which is only read. Name another file with --to."
            )
    if target.is_dir():
        raise ConfigError(f"{target}: this is a folder. Name a file in it with --to.")
    if target.exists() and not target.is_file():
        raise ConfigError(f"{target}: this is a device or a pipe. Name a file with --to.")
    if target.exists() and not force:
        raise ConfigError(f"{target}: exists. Name another file with --to, or add --force.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{target.parent}: cannot be made ({error.strerror}).") from error
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"{target.parent}: cannot be written to. Name another place with --to.")


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


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


def _print(plan: Plan, to: Path, compared: Comparison | None) -> None:
    rows = [
        ("model", f"{to} ({size(to.stat().st_size)})"),
        ("base", str(plan.factors.base.path)),
        ("adapter", f"{plan.factors.file.path}: {len(plan.factors.targets)} matrices"),
        ("type", plan.type),
    ]
    if compared is not None:
        rows.append(("compared", _words(compared)))
    rows.append(("use it", f"llama-cli -m {shlex.quote(str(to))}"))
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
