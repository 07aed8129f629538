"""Two policies side by side, as a person reads it in a terminal (`retrograd bench`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from app.rows import print_rows
from app.text import length, neutralise, one_line, score

if TYPE_CHECKING:
    from trainer.algorithms.comparison import Pair
    from trainer.algorithms.paired import Change
    from trainer.bench import Bench
    from trainer.opening.sides import Side

_CELLS_ELSEWHERE = 160
_INDENT = "  "
_PART_CELLS = 24
_LABELS = {
    "best": "highest reward, {best:.4g} (%)",
    "truncated": "cut at {most} tokens (%)",
    "tokens": "tokens of an answer",
    "loss per token": "the same over all tokens",
}


def print_bench(result: Bench, shown: int) -> None:
    """What was compared, the figures, what follows from them, and the ``shown`` largest gains and
    losses."""
    console = Console(highlight=False)
    print_rows([(Text(label, "bold"), Text(words)) for label, words in _compared(result)])
    console.print()
    print_rows(_table(result))
    console.print()
    for line in _conclusion(result):
        console.print(line, soft_wrap=not console.is_terminal)
    if result.notes:
        print_rows([(Text("note", "yellow"), Text(neutralise(note))) for note in result.notes])
    width = console.width if console.is_terminal else _CELLS_ELSEWHERE
    gains, losses = result.comparison.most_changed(shown)
    for title, pairs in (("Gained most", gains), ("Lost most", losses)):
        if pairs:
            console.print(Text(f"\n{title}", "bold"))
            for line in _examples(result, pairs, width):
                console.print(line, no_wrap=True, crop=False, overflow="ignore")


def _compared(result: Bench) -> Iterator[tuple[str, str]]:
    for side in result.sides:
        yield side.name, neutralise(_file(side))
    count, path = len(result.comparison.pairs), neutralise(str(result.questions.path))
    drawing = result.drawing
    if drawing is None:
        yield "texts", f"{count} of {path}"
        return
    each = "1 answer" if drawing.samples == 1 else f"{drawing.samples} answers"
    yield "prompts", f"{count} of {path}, {each} to each"
    yield "sampling", _sampling(result)


def _file(side: Side) -> str:
    return str(side.model) if side.adapter is None else str(side.adapter)


def _sampling(result: Bench) -> str:
    drawing = result.drawing
    assert drawing is not None
    settings = drawing.settings
    most = f"at most {settings.max_new_tokens} tokens"
    if drawing.is_greedy:
        return f"greedy, {most}"
    top = "" if settings.top_p == 1 else f", top_p {settings.top_p:g}"
    return f"temperature {settings.temperature:g}{top}, {most}, seed {drawing.seed}"


# -- the figures ---------------------------------------------------------------------------------


def _table(result: Bench) -> list[list[Text]]:
    comparison = result.comparison
    main = "loss of a text, nats a token" if comparison.lower_is_better else "mean reward"
    head = ["", *(side.name for side in result.sides), "change", "95% interval"]
    rows = [head, [main, *_cells(comparison.main, score)]]
    for name, change in comparison.others.items():
        write = {"best": _per_cent, "truncated": _per_cent, "tokens": length}.get(name, score)
        rows.append([_label(name, result), *_cells(change, write)])
    widths = [max(cell_len(row[i]) for row in rows) for i in range(len(head))]
    styles = ["dim", "bold", *[""] * (len(rows) - 2)]
    return [
        [
            Text(row[0], style),
            *(_right(c, w, style) for c, w in zip(row[1:], widths[1:], strict=True)),
        ]
        for row, style in zip(rows, styles, strict=True)
    ]


def _right(cell: str, width: int, style: str) -> Text:
    return Text(" " * (width - cell_len(cell)) + cell, style)


def _label(name: str, result: Bench) -> str:
    if name.startswith("part/"):
        return f"{_INDENT}{one_line(name.partition('/')[2], _PART_CELLS)}"
    drawing = result.drawing
    most = drawing.settings.max_new_tokens if drawing else 0
    return _LABELS[name].format(best=result.comparison.best_reward, most=most)


def _cells(change: Change, write: Callable[[float], str]) -> list[str]:
    return [
        write(change.before),
        write(change.after),
        _signed(change.difference, write),
        _interval(change, write),
    ]


def _interval(change: Change, write: Callable[[float], str]) -> str:
    if change.low is None or change.high is None:
        return ""
    return f"{_signed(change.low, write)} to {_signed(change.high, write)}"


def _signed(value: float, write: Callable[[float], str]) -> str:
    """With its sign, unless it is written as zero."""
    written = write(abs(value))
    if not any(digit in written for digit in "123456789"):
        return written
    return ("-" if value < 0 else "+") + written


def _per_cent(share: float) -> str:
    return f"{100 * share:.1f}"


# -- what follows --------------------------------------------------------------------------------


def _conclusion(result: Bench) -> Iterator[Text]:
    comparison = result.comparison
    change, name = comparison.main, result.sides[1].name
    assert change.sign_p is not None  # what policies are judged by is better or worse
    noun = "texts" if result.drawing is None else "prompts"
    if change.count == change.equal:
        verdict = _unchanged(result)
    elif change.low is None:
        verdict = f"There is no interval: all {noun} changed by the same, or there is only one."
    elif not change.is_shown:
        verdict = "No difference is shown: the interval holds zero."
    else:
        better = (change.difference < 0) == comparison.lower_is_better
        verdict = f"The {name} is {'better' if better else 'worse'}: the interval leaves zero out."
    yield Text(verdict, "bold")
    yield Text(
        f"Better on {change.better} of {change.count} {noun}, worse on {change.worse}, equal on "
        f"{change.equal}; sign test: {_p(change.sign_p)}."
    )


def _unchanged(result: Bench) -> str:
    """What it means that no prompt has another figure than before."""
    comparison = result.comparison
    if comparison.lower_is_better:
        return "The loss of no text changed."
    answers = (t for pair in comparison.pairs for side in pair.answers for t in side)
    if len({trajectory.reward for trajectory in answers}) == 1:
        return (
            "The reward of no prompt changed: all answers have the same one, so that it cannot "
            "tell them apart."
        )
    return "The reward of no prompt changed."


def _p(value: float) -> str:
    return "p < 0.0001" if value < 1e-4 else f"p = {value:.2g}"


# -- what changed most ---------------------------------------------------------------------------


def _examples(result: Bench, pairs: Sequence[Pair], width: int) -> Iterator[Text]:
    """Each question with its figures, and below it the two answers that show the change best."""
    names = [side.name for side in result.sides]
    longest = max(map(len, names))
    for pair in pairs:
        change = _signed(pair.after - pair.before, score)
        head = f"{_INDENT}{change:>7}  {score(pair.before)} → {score(pair.after)}{_INDENT}"
        yield Text.assemble(
            (head, "green" if pair.gain > 0 else "red"), _fitting(_question(pair), head, width)
        )
        for name, answer in zip(names, pair.plainest() or (), strict=False):
            head = f"{_INDENT}{'':>7}  {name:<{longest}}  {score(answer.reward):>6}{_INDENT}"
            text = answer.answer.text or "(an empty answer)"
            yield Text.assemble((head, "dim"), _fitting(text, head, width))


def _question(pair: Pair) -> str:
    """What was asked; of a text to learn also what was to be said."""
    if isinstance(pair.content, str):
        return pair.content
    said = [message.content for message in pair.content if message.role != "system"]
    return said[-1] if pair.content[-1].role == "user" else " → ".join(said[-2:])


def _fitting(text: str, head: str, width: int) -> str:
    return one_line(text, max(20, width - cell_len(head) - 1))
