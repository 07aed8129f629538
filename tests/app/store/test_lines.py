from __future__ import annotations

import csv
import io
import json
import math

import pytest

from app.store.lines import csv_line, json_line


def test_a_line_of_json_has_null_for_what_is_not_finite():
    line = json_line({"a": math.nan, "b": [1.5, math.inf], "c": {"d": -math.inf}, "e": "é\n"})
    assert line.count("\n") == 1
    assert json.loads(line) == {"a": None, "b": [1.5, None], "c": {"d": None}, "e": "é\n"}


@pytest.mark.parametrize(
    "text", ["=1+1", "+cmd", "-cmd", "@SUM(1)", "\tx", "\rx", "-5\n", "\uff1d1+1"]
)
def test_a_spreadsheet_takes_no_text_for_a_formula(text):
    (row,) = csv.reader(io.StringIO(csv_line(["a", text]), newline=""))
    assert row == ["a", f"'{text}"]


@pytest.mark.parametrize("text", ["-5", "+1.5", "-1e9", "a=b", "", 'a,b\n"c"'])
def test_other_texts_and_numbers_stay_as_they_are(text):
    (row,) = csv.reader(io.StringIO(csv_line([text, -2.5, None, [1, math.nan]]), newline=""))
    assert row == [text, "-2.5", "", "[1, null]"]
