"""How a group is laid before the judge, and how its replies become one verdict for each answer.

Answers are numbers here: places in a list that was shuffled before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from random import Random

from trainer.config.judge import StrategySection
from trainer.judge.questions import Failure, Kind, Reply, Verdict
from trainer.judge.scores import Comparison, bradley_terry, rescale, win_rates

CHUNK_ANSWERS = 5
"""Most answers of a chunk in the mode ``chunked``, its anchor included: few enough to be compared
with care."""

Fits = Callable[[Kind, tuple[int, ...]], bool]

_RAISE = "raise max_request_chars in [grpo.judge.context], or lower max_message_chars"


@dataclass(frozen=True, slots=True)
class Layout:
    """The requests of a group, each the answers in the order in which they are read.

    Of pairs that are asked about in both orders, the two requests follow each other.
    """

    kind: Kind
    requests: tuple[tuple[int, ...], ...]
    anchor: int | None = None
    both_orders: bool = False


def lay_out(
    lengths: Sequence[int], strategy: StrategySection, fits: Fits, rng: Random
) -> Layout | Failure:
    """The requests for answers of these ``lengths``, of which there are at least two.

    ``fits`` tells whether a request is short enough.
    """
    whole = tuple(range(len(lengths)))
    if strategy.mode == "pairwise":
        return _pairwise(len(lengths), strategy, fits, rng)
    if strategy.mode == "chunked":
        return _chunked(lengths, strategy.anchor, CHUNK_ANSWERS, fits, rng)
    if fits("list", whole):
        return Layout("list", (whole,))
    if strategy.mode == "auto":
        return _chunked(lengths, strategy.anchor, len(whole), fits, rng)
    return Failure(
        f'a request with all {len(whole)} answers is too long for one, and mode = "listwise" '
        f'never splits: set mode = "auto" in [grpo.judge.strategy], or {_RAISE}'
    )


def read_off(
    layout: Layout, replies: Sequence[Reply | Failure], count: int, strategy: StrategySection
) -> list[Verdict] | Failure:
    """One verdict for each of ``count`` answers, from the reply to each request of ``layout``."""
    if layout.kind == "pair":
        return _read_pairs(layout, replies, count, strategy)
    good: list[Reply] = []
    for reply in replies:
        if isinstance(reply, Failure):
            return reply
        good.append(reply)
    return _read_chunks(layout, good, count)


def _chunked(
    lengths: Sequence[int], anchored: bool, most: int, fits: Fits, rng: Random
) -> Layout | Failure:
    """As few chunks of about equal size as hold at most ``most`` answers each and fit."""
    anchor = _typical(lengths) if anchored else None
    others = [place for place in range(len(lengths)) if place != anchor]
    room = most - 1 if anchored else most
    # An answer that stands alone is compared with nothing.
    largest = len(others) if anchored else len(others) // 2
    for number in range(ceil(len(others) / max(1, room)), largest + 1):
        parts = [others[start::number] for start in range(number)]
        requests = tuple(_with_anchor(part, anchor, rng) for part in parts)
        if all(fits("list", request) for request in requests):
            return Layout("list", requests, anchor)
    return Failure(f"a request with two of its answers is too long: {_RAISE}")


def _typical(lengths: Sequence[int]) -> int:
    """The answer of median length: a long one costs room in every chunk, and one without content is
    no measure."""
    return sorted(range(len(lengths)), key=lambda place: lengths[place])[len(lengths) // 2]


def _with_anchor(part: Sequence[int], anchor: int | None, rng: Random) -> tuple[int, ...]:
    if anchor is None:
        return tuple(part)
    place = rng.randint(0, len(part))
    return (*part[:place], anchor, *part[place:])


def _read_chunks(layout: Layout, replies: Sequence[Reply], count: int) -> list[Verdict]:
    """Puts each chunk on the scale on which the anchor has its mean score."""
    pairs = list(zip(layout.requests, replies, strict=True))
    verdicts: dict[int, Verdict] = {}
    anchor = layout.anchor
    if anchor is None:
        for request, reply in pairs:
            verdicts.update(zip(request, reply, strict=True))
        return [verdicts[place] for place in range(count)]
    anchors = [reply[request.index(anchor)].score for request, reply in pairs]
    # Rounding may leave a sum of ones and their like just outside.
    target = min(1.0, sum(anchors) / len(anchors))
    for (request, reply), scale in zip(pairs, anchors, strict=True):
        for place, verdict in zip(request, reply, strict=True):
            moved = Verdict(rescale(verdict.score, scale, target), verdict.explanation)
            verdicts.setdefault(place, moved)
    return [verdicts[place] for place in range(count)]


def _pairwise(count: int, strategy: StrategySection, fits: Fits, rng: Random) -> Layout | Failure:
    pairs = _pairs(count, rng)[: strategy.max_pairs]
    if not all(fits("pair", pair) for pair in pairs):
        return Failure(f"a request with two of its answers is too long: {_RAISE}")
    if not strategy.both_orders:
        return Layout("pair", tuple(pairs))
    both = tuple(order for one, other in pairs for order in ((one, other), (other, one)))
    return Layout("pair", both, both_orders=True)


def _pairs(count: int, rng: Random) -> list[tuple[int, int]]:
    """Every pair, ordered so that the first few serve best.

    The answers stand in a circle. First come neighbours, which connects all of them with the fewest
    pairs, then the other distances in random order. Within a distance each answer comes first in
    one pair and second in another, so a judge that prefers a place favours nobody.
    """
    further = list(range(2, count // 2 + 1))
    rng.shuffle(further)
    pairs = []
    for distance in [1, *further]:
        starts = count // 2 if 2 * distance == count else count
        pairs += [(start, (start + distance) % count) for start in range(starts)]
    return pairs


def _read_pairs(
    layout: Layout, replies: Sequence[Reply | Failure], count: int, strategy: StrategySection
) -> list[Verdict] | Failure:
    step = 2 if layout.both_orders else 1
    pairs = layout.requests[::step]
    comparisons = [
        Comparison(one, other, points)
        for number, (one, other) in enumerate(pairs)
        if (points := _points(replies[number * step : (number + 1) * step])) is not None
    ]
    planned = {place for pair in pairs for place in pair}
    compared = {place for c in comparisons for place in (c.one, c.other)}
    if planned != compared or 2 * len(comparisons) < len(pairs):
        return _too_few(replies, len(comparisons), len(pairs))
    aggregate = bradley_terry if strategy.aggregation == "bradley_terry" else win_rates
    scores = aggregate(comparisons, count)
    return [Verdict(score, _record(place, comparisons)) for place, score in enumerate(scores)]


def _points(orders: Sequence[Reply | Failure]) -> float | None:
    """The share of the win that the pair's first answer got, over the orders it was asked in.

    None where one of them failed: half of a pair would count the judge's preference for a place.
    """
    points = []
    for number, reply in enumerate(orders):
        if isinstance(reply, Failure):
            return None
        first, second = (verdict.score for verdict in reply)
        share = 0.5 if first == second else float(first > second)
        points.append(1 - share if number else share)
    return sum(points) / len(points)


def _too_few(replies: Sequence[Reply | Failure], found: int, asked: int) -> Failure:
    reason = next(reply.reason for reply in replies if isinstance(reply, Failure))
    return Failure(
        f"only {found} of its {asked} comparisons can be used, which is less than half or leaves "
        f"an answer without any; the first that failed: {reason}"
    )


def _record(place: int, comparisons: Sequence[Comparison]) -> str:
    won = [c.points if c.one == place else 1 - c.points for c in comparisons if place in c[:2]]
    if not won:
        return "not compared, since max_pairs leaves it out"
    return f"won {sum(won):g} of {len(won)} comparisons"
