"""``retrograd bench``"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.errors import Debug, reported
from app.cli.replacing import Force, refuse_to_replace
from app.cli.temperatures import temperature_in_range
from app.cli.train import Config, Model, Seed

if TYPE_CHECKING:
    from trainer.bench import Bench
    from trainer.config import RunConfig

Adapter = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="An adapter, or a whole model, in place of the run's \\[output]."
    ),
]
Baseline = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="An adapter to compare with, in place of the base alone."),
]
Data = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Prompts to ask (SFT: texts), in place of those under \\[evaluation], or without such "
        "a section of those trained on.",
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="How many of them to take, evenly spread over the file."),
]
Samples = Annotated[
    int | None,
    typer.Option(min=1, max=256, metavar="K", help="Answers to each prompt; 4 if not given."),
]
Temperature = Annotated[
    float | None,
    typer.Option(
        metavar="T",
        callback=temperature_in_range,
        help="In place of the temperature in CONFIG; 0 is --greedy.",
    ),
]
Greedy = Annotated[
    bool,
    typer.Option(
        "--greedy", help="Take the most probable token each time: one answer to a prompt."
    ),
]
Show = Annotated[
    int, typer.Option(min=0, metavar="N", help="How many of the largest gains and losses to show.")
]
Json = Annotated[
    bool, typer.Option("--json", help="Print every answer and figure as JSON instead.")
]
Save = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the same JSON to FILE as well.")
]

_OPTIONS = {
    "result": "--adapter",
    "baseline": "--baseline",
    "data": "--data",
    "samples": "--samples",
    "temperature": "--temperature",
    "greedy": "--greedy",
}
"""What the wishes of `trainer.opening.sides.Wish` are called here."""


def bench(
    config: Config,
    adapter: Adapter = None,
    baseline: Baseline = None,
    data: Data = None,
    limit: Limit = None,
    samples: Samples = None,
    temperature: Temperature = None,
    greedy: Greedy = False,
    seed: Seed = None,
    show: Show = 3,
    as_json: Json = False,
    save: Save = None,
    force: Force = False,
    model: Model = None,
    debug: Debug = False,
) -> None:
    """Compare the base with what the run of CONFIG made of it.

    Both answer the same prompts with the same seeds and are scored alike, without the judge. The
    change of the mean reward comes with its 95% interval over prompts. For SFT it is the loss of
    the texts.
    """
    with reported(debug):
        from app.terminal.progress import ProgressMonitor

        if save is not None:
            refuse_to_replace(save, "--save", force=force)
        loaded = _loaded(config, model, seed, save)
        words = "scoring" if loaded.run.algorithm == "sft" else "answering"
        with ProgressMonitor(words={"evaluate": words}) as monitor:
            # After the configuration is known to be good: these imports take seconds.
            from trainer.bench import bench as run_bench
            from trainer.opening.sides import Wish

            if temperature == 0:
                temperature, greedy = None, True
            wish = Wish(
                adapter, baseline, data, limit, samples, temperature, greedy, names=_OPTIONS
            )
            result = run_bench(loaded, wish, monitor)
        written = _json(result) if as_json or save is not None else ""
        if as_json:
            typer.echo(written)
        else:
            from app.terminal.bench import print_bench

            print_bench(result, show)
        # Last, so that a disk that is full does not take what took so long.
        if save is not None:
            _save(written, save)


def _loaded(path: Path, model: Path | None, seed: int | None, save: Path | None) -> RunConfig:
    from app.overrides import with_seed
    from trainer.config import Overrides, load_config
    from trainer.errors import ConfigError

    config = load_config(path, Overrides(model=model))
    if save is not None and (save.is_dir() or not save.parent.is_dir()):
        raise ConfigError(f"--save: {save}: name a file in a folder that exists.")
    return config if seed is None else with_seed(config, seed)


def _json(result: Bench) -> str:
    from app.cli.bench_record import record_of

    return json.dumps(record_of(result), indent=2, ensure_ascii=False, allow_nan=False)


def _save(written: str, path: Path) -> None:
    from trainer.errors import RetrogradError

    try:
        path.write_text(written + "\n", encoding="utf-8")
    except OSError as error:
        raise RetrogradError(f"--save: {path}: cannot be written ({error.strerror}).") from error
