"""Labelled rows on stdout: folded to a terminal's width, and whole lines anywhere else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.text import folded

_GAP = "  "


def prose(words: str, stream: IO[str]) -> str:
    """``words`` broken at spaces to the width of ``stream`` if that is a terminal; as they are for
    any other reader, who searches lines."""
    console = Console(file=stream)
    return folded(words, console.width) if console.is_terminal else words


def print_rows(rows: Sequence[Sequence[Text]]) -> None:
    """Aligned columns. Only the last one is folded, and only on a terminal: a path that is broken
    in two cannot be searched for."""
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(_grid(rows))
        return
    *widths, _ = (
        max(cell_len(cell.plain) for cell in column) for column in zip(*rows, strict=True)
    )
    for row in rows:
        for line in _lines(row, widths):
            print(line)


def _grid(rows: Sequence[Sequence[Text]]) -> Table:
    grid = Table.grid(padding=(0, len(_GAP)))
    for _ in rows[0][:-1]:
        grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for row in rows:
        grid.add_row(*row)
    return grid


def _lines(row: Sequence[Text], widths: Sequence[int]) -> list[str]:
    """The row; further lines of its last cell stand below the first."""
    heads = [cell.plain for cell in row[:-1]]
    head = "".join(
        text + " " * (width - cell_len(text)) + _GAP
        for text, width in zip(heads, widths, strict=True)
    )
    first, *further = row[-1].plain.split("\n")
    below = " " * cell_len(head)
    return [line.rstrip() for line in (head + first, *(below + line for line in further))]
