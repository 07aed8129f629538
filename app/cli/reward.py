"""``retrograd reward test``"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.errors import Debug, reported
from app.cli.train import Config
from app.text import counted, neutralise, one_line

if TYPE_CHECKING:
    from trainer.chat.messages import PromptLine
    from trainer.config import RolloutConfig
    from trainer.reward.program import RewardProgram, RewardReply, RewardRequest

app = typer.Typer(help="Try what scores the answers.", no_args_is_help=True)

# What a model may really produce, the awkward included. None of it is meant to score well.
_SAMPLE_ANSWERS = (
    "I think the answer is 42.",
    "",
    'Two lines,\nwith "quotes", a \\ and some letters outside ASCII: é 数 😀',
)


@app.callback()
def _group() -> None:
    return


@app.command("test")
def try_out(
    config: Config,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="How many prompts to use.")] = 3,
    debug: Debug = False,
) -> None:
    """Run the reward program or reward model of CONFIG on real prompts with made-up answers.

    Each prompt gets its own `answer` field, where it has one, then a sentence, an empty answer and
    one with awkward characters. Every line sent to a program and received is shown, and every
    score of a model.
    """
    with reported(debug):
        from trainer.config import SftConfig, load_config
        from trainer.data import read_lines
        from trainer.errors import ConfigError

        loaded = load_config(config)
        if isinstance(loaded, SftConfig):
            raise ConfigError(f"{config} describes an SFT run, which has no rewards.")
        requests = _requests(read_lines(loaded.rollout)[:limit])
        with _open(loaded) as scorer:
            replies = scorer.score(requests)
        if loaded.rollout.reward_model is not None:
            _list(requests, replies)
        _summarise(requests, replies, loaded.run.algorithm)
        if stderr := scorer.stderr_tail().strip():
            typer.echo(f"The program's stderr:\n{neutralise(stderr, keep_newlines=True)}")


def _open(config: RolloutConfig) -> RewardProgram:
    from trainer.config import GrpoConfig
    from trainer.reward.combined import open_reward
    from trainer.reward.program import open_reward_program

    section = config.rollout
    judge_allowed = isinstance(config, GrpoConfig) and config.grpo.judge is not None
    if section.reward_model is None:
        return open_reward_program(
            section.reward_command or [],
            mode=section.reward_mode,
            timeout_seconds=section.reward_timeout_seconds,
            folder=config.folder,
            judge_allowed=judge_allowed,
            exchange=_Transcript(),
        )
    # A program alone has no use for torch, which is slow to import.
    from trainer.device import choose_device

    return open_reward(
        section,
        folder=config.folder,
        device=choose_device(config.model.device),
        judge_allowed=judge_allowed,
        exchange=_Transcript(),
        on_note=lambda note: typer.echo(neutralise(note)),
    )


class _Transcript:
    def sent(self, line: str) -> None:
        typer.echo(f"→ {neutralise(line)}")

    def received(self, line: str) -> None:
        typer.echo(f"← {neutralise(line)}")


def _requests(prompts: Sequence[PromptLine]) -> list[RewardRequest]:
    from trainer.reward.exchange import RewardRequest

    requests = []
    for prompt in prompts:
        own = [str(prompt.metadata["answer"])] if "answer" in prompt.metadata else []
        requests += [RewardRequest(prompt, text) for text in (*own, *_SAMPLE_ANSWERS)]
    return requests


def _list(requests: Sequence[RewardRequest], replies: Sequence[RewardReply]) -> None:
    """What each answer got; of a model, no lines are exchanged that would tell."""
    for request, reply in zip(requests, replies, strict=True):
        parts = ", ".join(f"{neutralise(name)} {value:g}" for name, value in reply.parts.items())
        answer, question = (one_line(t, 60) for t in (request.completion, request.prompt.question))
        typer.echo(f"{reply.reward:g} ({parts}): {answer or '(an empty answer)'}  to  {question}")


def _summarise(
    requests: Sequence[RewardRequest], replies: Sequence[RewardReply], algorithm: str
) -> None:
    rewards = [reply.reward for reply in replies]
    many = counted(len(rewards), "answer")
    typer.echo(f"{many} scored, rewards from {min(rewards):g} to {max(rewards):g}.")
    if min(rewards) == max(rewards):
        compared = "group" if algorithm == "grpo" else "batch"
        typer.echo(
            "Every answer got the same reward. That is right only if these answers are all equally "
            f"good; where a whole {compared} of answers scores alike, {algorithm.upper()} learns "
            "nothing from it."
        )
    own = [
        reply.reward
        for request, reply in zip(requests, replies, strict=True)
        if request.completion == str(request.prompt.metadata.get("answer"))
    ]
    if own and max(own) < max(rewards):
        typer.echo("No prompt's own `answer` field got the highest reward, which may be a mistake.")
