"""``retrograd chat``"""

from __future__ import annotations

import secrets
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.errors import Debug, reported, say
from app.cli.temperatures import temperature_in_range

if TYPE_CHECKING:
    from app.terminal.dialogue import Dialogue
    from trainer.conversation import Partner
    from trainer.rollout.answers import SamplingSettings

_LARGEST_FRESH_SEED = 999_999
"""A seed that nobody asked for is short, so that it can be typed again."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Whom to talk to: a model, and an adapter on it or (None) the model alone."""

    model: Path
    adapter: Path | None
    options: dict[str, Any]
    """Of `Partner`: what a configuration says of the context."""


Adapter = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A LoRA adapter (GGUF) on the model.")
]
Compare = Annotated[
    bool, typer.Option("--compare", help="Let the base answer too: first it, then the adapter.")
]
Temperature = Annotated[
    float,
    typer.Option(
        callback=temperature_in_range,
        help="What divides the logits, from 0.01 to 100; 0 takes the likeliest token.",
    ),
]
TopP = Annotated[
    float, typer.Option(help="Draw from the likeliest tokens that have this mass together.")
]
Seed = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=2**63 - 1,
        help="Of the first answer; each after it has one more. Without it any, which is told.",
        show_default=False,
    ),
]
Ctx = Annotated[
    int | None,
    typer.Option(
        min=8,
        metavar="N",
        help="The most tokens of a conversation, in place of what the TOML file says, or of what "
        "the model was trained for (at most 4096).",
        show_default=False,
    ),
]
Raw = Annotated[
    bool,
    typer.Option(
        "--raw",
        help="Without a chat template: the model goes on from each line as it is, and keeps "
        "nothing of it.",
    ),
]


def chat(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL_OR_TOML",
            help="A model (GGUF), or the TOML file of a run: then its model, adapter and ctx.",
        ),
    ],
    adapter: Adapter = None,
    compare: Compare = False,
    system: Annotated[str, typer.Option(metavar="TEXT", help="The system message.")] = "",
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    seed: Seed = None,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, metavar="N", help="The most tokens of an answer.")
    ] = 512,
    ctx: Ctx = None,
    raw: Raw = False,
    debug: Debug = False,
) -> None:
    """Talk to a model, to an adapter on it, or with --compare to both.

    In a terminal /help lists what else can be said, Ctrl-C stops an answer, and Ctrl-D leaves. Each
    line that comes through a pipe is a message.
    """
    with reported(debug):
        from trainer.errors import ConfigError

        if not 0 < top_p <= 1:
            raise ConfigError(f"--top-p {top_p:g}: must be above 0 and at most 1.")
        if raw and system:
            raise ConfigError("--system has no place with --raw: there is no template to put it.")
        wanted = _wanted(model, adapter, ctx)
        if compare and wanted.adapter is None:
            raise ConfigError("--compare needs an adapter: name it with --adapter.")

        from trainer.rollout.answers import SamplingSettings

        settings = SamplingSettings(temperature, top_p, max_new_tokens)
        adapters = [None, wanted.adapter] if compare else [wanted.adapter]
        with _partner(wanted, adapters, raw) as partner:
            first = secrets.randbelow(_LARGEST_FRESH_SEED + 1) if seed is None else seed
            _talk(_dialogue(partner, wanted, settings, system, first))


def _partner(wanted: _Wanted, adapters: list[Path | None], raw: bool) -> Partner:
    """Raises as `Partner` does."""
    from trainer.conversation import Partner
    from trainer.errors import NoTemplateError

    try:
        return Partner(wanted.model, adapters, raw=raw, **wanted.options)
    except NoTemplateError as error:
        raise NoTemplateError(f"{error}; --raw lets it go on from a text as it is") from error


def _talk(dialogue: Dialogue) -> None:
    from app.terminal.dialogue import lines_of_a_person, lines_of_a_script

    names = " and ".join(speaker.label for speaker in dialogue.speakers)
    ctx = dialogue.speakers[0].conversation.partner.ctx
    begun = f"{names}: a context of {ctx} tokens, seed {dialogue.seed}."
    if not dialogue.interactive:
        say(begun)
        dialogue.run(lines_of_a_script())
        return
    say(f"{begun} /help tells more.\n")
    try:
        dialogue.run(lines_of_a_person())
    except EOFError:
        return


def _dialogue(
    partner: Partner, wanted: _Wanted, settings: SamplingSettings, system: str, seed: int
) -> Dialogue:
    from app.terminal.dialogue import Dialogue, Speaker

    base = f"base {wanted.model.name}"
    adapted = base if wanted.adapter is None else f"adapter {wanted.adapter.name}"
    speakers = [
        Speaker(label, partner.conversation(voice, system))
        for voice, label in enumerate([base, adapted][-len(partner.voices) :])
    ]
    return Dialogue(speakers, settings, seed, interactive=bool(sys.stdin and sys.stdin.isatty()))


def _wanted(model: Path, adapter: Path | None, ctx: int | None) -> _Wanted:
    """Raises ConfigError, for a configuration as `load_config` does."""
    from trainer.errors import ConfigError

    options: dict[str, Any] = {"ctx": ctx}
    if model.suffix.lower() == ".toml":
        from trainer.config import load_config

        config = load_config(model)
        model = config.model.path
        options = {
            "ctx": ctx or config.training.ctx,
            "exact": not config.training.fast_sampling_context,
            "threads": config.training.threads,
            "use_gpu": config.model.device != "cpu",
            "variables": config.model.template_variables,
            "merge_system": config.model.merge_system,
        }
        trained = config.output.adapter_path
        if adapter is None and not trained.is_file():
            raise ConfigError(
                f"{config.where('output.path')}: {trained}: there is no such file yet. "
                f"Train it with `retrograd train`, name another adapter with --adapter, or talk to "
                f"the base alone: retrograd chat {shlex.quote(str(model))}"
            )
        adapter = adapter or trained
    if adapter is not None and not adapter.is_file():
        raise ConfigError(f"{adapter}: there is no such adapter file.")
    return _Wanted(model, adapter, options)
