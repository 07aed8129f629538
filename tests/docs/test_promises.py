"""Pages that end with a table of promises name tests that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["grpo"]
ROW = re.compile(r"^\| (?P<promise>.+) \| (?P<tests>`[^|]+`) \|$", re.MULTILINE)


def promises(page):
    """What a page promises, each with its tests as path::name."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    _, heading, table = text.partition("\n| what is promised | test |\n")
    assert heading, page
    return {m["promise"]: re.findall(r"`([^`]+)`", m["tests"]) for m in ROW.finditer(table)}


def defined_in(path):
    """Names of the test functions that a file defines at its top."""
    tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_promise_names_exists(page):
    named = {name for names in promises(page).values() for name in names}
    missing = []
    for test in sorted(named):
        path, _, name = test.partition("::")
        if not name.startswith("test_") or name not in defined_in(path):
            missing.append(test)
    assert missing == []


@pytest.mark.parametrize("page", PAGES)
def test_every_row_of_the_table_is_read(page):
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    _, _, table = text.partition("\n| what is promised | test |\n| --- | --- |\n")
    assert len(promises(page)) == len(table.strip().splitlines())
