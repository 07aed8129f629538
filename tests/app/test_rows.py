from __future__ import annotations

import io
import sys

from rich.text import Text

from app.rows import print_rows

ROWS = [
    (Text("ok"), Text("model"), Text("/a/long/path" * 20)),
    (Text("warning"), Text("数"), Text("two\n\nlines")),
]


def test_where_nobody_looks_a_path_stays_in_one_piece(capsys):
    print_rows(ROWS)
    assert capsys.readouterr().out.splitlines() == [
        "ok       model  " + "/a/long/path" * 20,
        "warning  数     two",
        "",
        "                lines",
    ]


def test_on_a_terminal_the_last_column_is_folded(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    for name, value in (("COLUMNS", "60"), ("TERM", "xterm"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    print_rows(ROWS)
    lines = screen.getvalue().splitlines()
    assert len(lines) > 6
    assert all(len(line) <= 60 for line in lines)
    assert lines[1].startswith(" " * 16)
