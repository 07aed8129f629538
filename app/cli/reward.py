"""``retrograd reward test``"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.errors import Debug, reported
from app.cli.train import Config
from app.text import neutralise

if TYPE_CHECKING:
    from trainer.chat.messages import PromptLine
    from trainer.reward.exchange import RewardReply, RewardRequest

app = typer.Typer(help="Try a reward program.", no_args_is_help=True)

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
    """Run the reward program of CONFIG on real prompts with made-up answers.

    Each prompt gets its own `answer` field, where it has one, then a sentence, an empty answer and
    one with awkward characters. Every line sent and received is shown.
    """
    with reported(debug):
        from trainer.chat.dataset import read_prompts
        from trainer.config import GrpoConfig, load_config
        from trainer.errors import ConfigError
        from trainer.reward.program import open_reward_program

        loaded = load_config(config)
        if not isinstance(loaded, GrpoConfig):
            raise ConfigError(f"{config} describes a {loaded.run.algorithm} run: use a GRPO one.")
        requests = _requests(read_prompts(loaded.grpo.prompts)[:limit])
        with open_reward_program(
            loaded.grpo.reward_command,
            mode=loaded.grpo.reward_mode,
            timeout_seconds=loaded.grpo.reward_timeout_seconds,
            folder=loaded.folder,
            judge_allowed=loaded.grpo.judge is not None,
            exchange=_Transcript(),
        ) as program:
            replies = program.score(requests)
        _summarise(requests, replies, program.stderr_tail())


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


def _summarise(
    requests: Sequence[RewardRequest], replies: Sequence[RewardReply], stderr: str
) -> None:
    rewards = [reply.reward for reply in replies]
    typer.echo(f"{len(rewards)} answers scored, rewards from {min(rewards):g} to {max(rewards):g}.")
    if min(rewards) == max(rewards):
        typer.echo(
            "Every answer got the same reward. That is right only if these answers are all equally "
            "good; where a whole group of answers scores alike, GRPO learns nothing from it."
        )
    own = [
        reply.reward
        for request, reply in zip(requests, replies, strict=True)
        if request.completion == str(request.prompt.metadata.get("answer"))
    ]
    if own and max(own) < max(rewards):
        typer.echo("No prompt's own `answer` field got the highest reward, which may be a mistake.")
    if stderr.strip():
        typer.echo(f"The program's stderr:\n{neutralise(stderr, keep_newlines=True).rstrip()}")
