"""What a run's numbers say, in sentences: what is well, what is wrong, and what only looks wrong.

What is wrong are the findings that the run itself keeps; the rest is told from a few numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from app.routes.advice import Part, parts_of
from app.routes.tiles import healthy_below
from app.routes.trend import EARLY, Trend, trend_between, trend_of, trend_since_the_start
from app.server.templating import number, percent
from app.store.models import Run
from app.store.queries.overview import Numbers
from trainer.health.headline import Headline, headline_of
from trainer.health.resolve import lookup
from trainer.health.rules import Metric

Tone = Literal["good", "warn", "quiet"]
_LEAST_EVALUATIONS = 2
"""In each half of them, so that they have a spread."""
_WORTH_A_WORD = 0.5
"""The part of what is healthy from which on it is told."""


@dataclass(frozen=True, slots=True)
class Statement:
    """``title`` is the statement with its number, ``text`` what follows from it, ``metric`` the
    curve that shows it, or empty."""

    tone: Tone
    title: str
    text: list[Part]
    metric: str


def statements(run: Run, numbers: Numbers, guide: Mapping[str, Metric]) -> list[Statement]:
    """What is wrong first, then what is well, then what needs no care."""
    wrong = [_wrong(finding) for finding in run.findings]
    told = {statement.metric for statement in wrong}
    main = headline_of(run.algorithm)
    good = [] if main.name in told else list(_learning(numbers, main))
    other = list(_silent_groups(run, numbers, guide, told)) + list(_zero_loss(run, numbers))
    if good and good[0].tone == "good":
        return [*good, *wrong, *other, *_all_well(numbers, guide, bool(wrong))]
    return [*wrong, *good, *other, *_all_well(numbers, guide, bool(wrong))]


def _wrong(finding: Mapping[str, Any]) -> Statement:
    value, bound, since = (finding[key] for key in ("value", "bound", "since"))
    title = f"{_named(finding['metric'])} is {number(value)}, {bound}, since update {since}."
    text = f"{finding['what']} {finding['change']}"
    return Statement("warn", title, parts_of(text), finding["metric"])


def _named(metric: str) -> str:
    """A metric as the subject of a sentence."""
    names = {"reward/mean": "The mean reward", "policy/clip_fraction": "The clip fraction"}
    rest = metric.partition("/")[2].replace("_", " ").replace("/", " ")
    return names.get(metric, f"{metric.partition('/')[0].capitalize()}: {rest}")


def _learning(numbers: Numbers, main: Headline) -> Iterator[Statement]:
    trend = trend_of(numbers.main)
    word = main.word
    if trend is None:
        count = len(numbers.main)
        if count:
            text = f"After {EARLY} updates there is a trend to tell; there have been {count}."
            yield Statement("quiet", "It is too early to say.", [Part(text, key=False)], main.name)
        return
    since = trend_since_the_start(numbers)
    if trend.sure:
        yield _moving(trend, numbers, main)
    elif since is not None and since.sure and main.is_better(since.now, since.before):
        change = f"{number(since.before)} → {number(since.now)}"
        title = f"It has learnt: the {word} went {change}, and is steady now."
        text = f"Means of the first {since.over} updates and of the last. "
        text += _held_out(numbers, main)
        yield Statement("good", title, parts_of(text.strip()), main.name)
    elif not trend.is_level:
        title = f"The {word} {_change(trend)}, which its noise may explain."
        yield Statement("quiet", title, parts_of(_means(trend)), main.name)
    else:
        title = f"The {word} is steady at {number(trend.now)}."
        yield Statement("quiet", title, parts_of(_means(trend)), main.name)


def _moving(trend: Trend, numbers: Numbers, main: Headline) -> Statement:
    change = f"the {main.word} {_change(trend)}."
    if main.is_better(trend.now, trend.before):
        text = f"{_means(trend)} {_held_out(numbers, main)}".strip()
        return Statement("good", f"Learning: {change}", parts_of(text), main.name)
    text = f"{_means(trend)} If that lasts, lower training.lr."
    return Statement("warn", change.capitalize(), parts_of(text), main.name)


def _change(trend: Trend) -> str:
    verb = "fell" if trend.change < 0 else "rose"
    return f"{verb} {number(abs(trend.change))} in {trend.over} updates"


def _means(trend: Trend) -> str:
    return f"{number(trend.before)} → {number(trend.now)}, means of {trend.over} updates each."


def _held_out(numbers: Numbers, main: Headline) -> str:
    """Whether what is measured on prompts that are not trained on follows. Nothing where it has
    changed by no more than its own noise explains; no judgement while that noise is not known."""
    half = len(numbers.evaluations) // 2
    if half < _LEAST_EVALUATIONS:
        if not half:
            return ""
        (_, before), (_, now) = numbers.evaluations[0], numbers.evaluations[-1]
        return f"The held-out {main.word} went {number(before)} → {number(now)}."
    trend = trend_between(numbers.evaluations[:half], numbers.evaluations[-half:])
    if not trend.sure:
        return ""
    change = f"{number(trend.before)} → {number(trend.now)}"
    if main.is_better(trend.now, trend.before):
        return f"The held-out {main.word} follows it ({change}), so it is not memorising."
    return (
        f"The held-out {main.word} does not follow ({change}): it may be memorising. More varied "
        "data helps, or an end by evaluation.patience."
    )


def _silent_groups(
    run: Run, numbers: Numbers, guide: Mapping[str, Metric], told: set[str]
) -> Iterator[Statement]:
    """Few enough to be fine, and enough to be worth a word."""
    name = "batch/zero_std_group_fraction"
    share = numbers.last.get(name)
    high = healthy_below(guide, name)
    if share is None or high is None or share < _WORTH_A_WORD * high or name in told:
        return
    best, worst = numbers.last.get("reward/max"), numbers.last.get("reward/min")
    why = "All answers to their prompts score alike, so nothing is learnt from them."
    if best is not None and worst is not None and best == worst:
        why = "All answers of the update score alike."
    cure = "Partial credit or other prompts help."
    if run.algorithm == "grpo" and lookup(run.params, "grpo.dynamic_sampling") is None:
        cure = "[grpo.dynamic_sampling] draws other prompts in their place; partial credit helps."
    title = f"{percent(share)} of the groups had no signal in the last update."
    yield Statement("quiet", title, parts_of(f"{why} {cure}"), name)


def _zero_loss(run: Run, numbers: Numbers) -> Iterator[Statement]:
    loss = numbers.last.get("policy/total_loss")
    if run.algorithm == "sft" or loss is None:
        return
    how = {
        "grpo": "Advantages are centred in each group, so they cancel out in the sum",
        "ppo": "Advantages are whitened in each update, so they cancel out in the sum",
    }[run.algorithm]
    norm = numbers.last.get("optimizer/grad_norm")
    watch = "watch the reward" + (
        "" if norm is None else f" and the gradient norm ({number(norm)})"
    )
    title = f"The loss reads {loss:.2f}, and that says nothing.".replace("-", "−")
    if abs(loss) < 0.005:
        title = "The loss reads 0.00, and that is normal."
    yield Statement("quiet", title, parts_of(f"{how}; {watch}."), "policy/total_loss")


def _all_well(numbers: Numbers, guide: Mapping[str, Metric], wrong: bool) -> Iterator[Statement]:
    watched = [name for name in guide if name in numbers.last]
    if wrong or len(numbers.main) < EARLY or not watched:
        return
    count = len(watched)
    of_them = f"None of the {count} numbers" if count > 1 else "The one number"
    text = f"{of_them} that {'are' if count > 1 else 'is'} watched for trouble shows "
    text += "any." if count > 1 else "none."
    clip = numbers.last.get("policy/clip_fraction")
    if clip is not None:
        text += f" The clip fraction is {number(clip)}."
    gap = numbers.last.get("sampler/logprob_gap_mean")
    if gap is not None:
        text += f" Sampler and trainer differ by {number(gap)} nats a token."
    yield Statement("good", "No warning signs.", parts_of(text), "")
