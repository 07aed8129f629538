from pathlib import Path

import pytest

from trainer.health.guide import GUIDE
from trainer.health.reference import BEGIN, END, table, with_table

PAGE = Path(__file__).parents[3] / "docs" / "health.md"


def test_the_committed_table_is_up_to_date():
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page


def test_each_rule_has_a_row():
    rows = table().splitlines()[2:]
    assert len(rows) == sum(max(1, len(metric.rules)) for metric in GUIDE)
    assert {row.count("|") for row in rows} == {6}
    for metric in GUIDE:
        assert any(row.startswith(f"| `{metric.name}`") for row in rows)


def test_keys_are_named_once_where_both_algorithms_have_them():
    row = next(row for row in table().splitlines() if "all of a sudden" in row)
    assert row.endswith("| Lower `training.lr`, and raise `kl_coefficient`. |")


def test_what_stands_around_the_table_stays():
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert with_table(page) == f"before\n{BEGIN}\n\n{table()}\n\n{END}\nafter\n"


def test_a_page_without_marks_is_refused():
    with pytest.raises(ValueError, match="the page needs the line"):
        with_table("no marks")
