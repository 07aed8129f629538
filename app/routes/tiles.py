"""The six numbers at the top of a run's page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from app.routes.trend import has_learnt
from app.server.templating import duration, number, percent
from app.store.models import Run
from app.store.queries.overview import Numbers
from trainer.health.headline import headline_of
from trainer.health.resolve import lookup
from trainer.health.rules import Above, Metric, Test, Zero

Guide = Mapping[str, Metric]


@dataclass(frozen=True, slots=True)
class Tile:
    """``change`` is how far the number is from where it was, and ``better`` whether that is good
    (None: neither); ``note`` says what to think of it."""

    name: str
    value: str
    note: str
    change: float | None = None
    better: bool | None = None


def tiles(run: Run, numbers: Numbers, guide: Guide) -> list[Tile]:
    """Those of the run's algorithm."""
    if run.algorithm == "sft":
        return [
            _since_the_start("loss", run, numbers),
            _held_out_loss(numbers),
            _epoch(run, numbers),
            _tokens_learnt(numbers),
            _norm(numbers),
            _speed(run, numbers),
        ]
    return [
        _since_the_start("reward / mean", run, numbers),
        _clip_fraction(run, numbers, guide),
        _signal(run, numbers, guide),
        _length(numbers),
        _gap(numbers, guide),
        _speed(run, numbers),
    ]


def _signal(run: Run, numbers: Numbers, guide: Guide) -> Tile:
    """What the algorithm takes its advantages from."""
    if run.algorithm != "ppo":
        return _silent_groups(run, numbers, guide)
    critic = "critic/explained_variance"
    if critic in numbers.last or lookup(run.params, "ppo.critic.enabled"):
        return _held_against("foreseen by the critic", critic, numbers, guide)
    return Tile("reward spread", number(numbers.last.get("reward/std")), "within the update")


def _since_the_start(name: str, run: Run, numbers: Numbers) -> Tile:
    main = headline_of(run.algorithm)
    value = numbers.last.get(main.name)
    if value is None:
        return Tile(name, number(None), "comes with the first update")
    if len(numbers.main) < 2:
        return Tile(name, number(value), "of the first update")
    if not numbers.start:  # the first values were not finite
        return Tile(name, number(value), "")
    update, before = numbers.start[0]
    change = value - before
    better = None if change == 0 else main.is_better(value, before)
    return Tile(name, number(value), f"since update {update}", change, better)


def _held_against(name: str, metric: str, numbers: Numbers, guide: Guide) -> Tile:
    entry = guide.get(metric)
    note = f"healthy: {entry.healthy.text}" if entry else ""
    return Tile(name, number(numbers.last.get(metric)), note)


def _clip_fraction(run: Run, numbers: Numbers, guide: Guide) -> Tile:
    tile = _held_against("clip fraction", "policy/clip_fraction", numbers, guide)
    excuse = fine_at_zero("policy/clip_fraction", run, numbers, guide)
    return replace(tile, note=f"{tile.note}; {excuse}") if excuse else tile


def fine_at_zero(metric: str, run: Run, numbers: Numbers, guide: Guide) -> str:
    """What to say of a 0 below the healthy band that the guide does not mind while the run learns,
    as this one does; empty where there is nothing to say."""
    entry = guide.get(metric)
    excused = entry is not None and any(
        isinstance(rule.test, Zero) and rule.unless_learning for rule in entry.rules
    )
    if not excused or numbers.last.get(metric) != 0:
        return ""
    learns = has_learnt(numbers, headline_of(run.algorithm))
    return "0 is fine while the run learns" if learns else ""


def _silent_groups(run: Run, numbers: Numbers, guide: Guide) -> Tile:
    metric = "batch/zero_std_group_fraction"
    share = numbers.last.get(metric)
    count = lookup(run.params, "grpo.prompts_per_update")
    value = percent(share)
    if share is not None and isinstance(count, int) and _whole(share * count):
        value = f"{round(share * count)} of {count}"
    note = f"fine below {percent(healthy_below(guide, metric))}"
    if share is not None:
        note = f"{percent(share)} · {note}"
    return Tile("groups without signal", value, note)


def _whole(value: float) -> bool:
    return abs(value - round(value)) < 1e-6


def _length(numbers: Numbers) -> Tile:
    cut = numbers.last.get("completions/truncation_fraction")
    note = "tokens" if cut is None else f"tokens · {percent(cut)} truncated"
    return Tile("answer length", number(numbers.last.get("completions/length_mean")), note)


def healthy_below(guide: Guide, metric: str) -> float | None:
    """Where the healthy band of a metric ends; None where it is open, or the guide has none."""
    entry = guide.get(metric)
    high = entry.healthy.high if entry else None
    return high if isinstance(high, float) else None


def _gap(numbers: Numbers, guide: Guide) -> Tile:
    metric = "sampler/logprob_gap_mean"
    gap = numbers.last.get(metric)
    if gap is None:
        return Tile("sampler gap", number(None), "")
    note = "sampling is on-policy"
    high = healthy_below(guide, metric)
    if any(isinstance(t, Above) and gap > float(t.limit) for t in _tests(guide, metric)):
        note = "sampling is off-policy"
    elif high is not None and gap > high:
        note = f"larger than the healthy {high:g}"
    return Tile("sampler gap", number(gap), note)


def _tests(guide: Guide, metric: str) -> list[Test]:
    entry = guide.get(metric)
    return [rule.test for rule in entry.rules] if entry else []


def _speed(run: Run, numbers: Numbers) -> Tile:
    seconds = run.seconds_per_update or numbers.last.get("timing/update_seconds")
    whole, training = (numbers.last.get(f"timing/{of}_seconds") for of in ("update", "train"))
    note = "an update"
    if whole and training is not None:
        note += f" · {percent(training / whole)} training"
    return Tile("speed", _seconds(seconds), note)


def _seconds(value: float | None) -> str:
    if value is not None and value < 1:
        return f"{1000 * value:.0f} ms"
    return duration(value)


def _held_out_loss(numbers: Numbers) -> Tile:
    if not numbers.evaluations:
        return Tile("held-out loss", number(None), "no [evaluation] yet")
    update, value = numbers.evaluations[-1]
    first, change = numbers.evaluations[0][0], value - numbers.evaluations[0][1]
    if update == first:
        return Tile("held-out loss", number(value), f"at update {update}")
    return Tile("held-out loss", number(value), f"since update {first}", change, change < 0)


def _epoch(run: Run, numbers: Numbers) -> Tile:
    epochs = lookup(run.params, "training.epochs")
    note = f"of {epochs}" if epochs else ""
    return Tile("epoch", number(numbers.last.get("sft/epoch")), note)


def _tokens_learnt(numbers: Numbers) -> Tile:
    texts = numbers.last.get("sft/texts")
    note = "" if texts is None else f"in {texts:.0f} texts"
    return Tile("tokens learnt in an update", _whole_number(numbers.last.get("sft/tokens")), note)


def _whole_number(value: float | None) -> str:
    return number(value) if value is None else f"{value:,.0f}"


def _norm(numbers: Numbers) -> Tile:
    rate = numbers.last.get("optimizer/learning_rate")
    return Tile(
        "gradient norm",
        number(numbers.last.get("optimizer/grad_norm")),
        f"learning rate {number(rate)}",
    )
