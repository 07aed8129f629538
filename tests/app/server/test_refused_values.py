from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from app.server.refused_values import sentence


def even(value: int) -> int:
    if value % 2:
        raise ValueError("an even number is wanted")
    return value


@pytest.mark.parametrize(
    ("taken", "given", "said"),
    [
        (int, "abc", "x = abc must be a whole number."),
        (int, 1.5, "x = 1.5 must be a whole number."),
        (int, "9" * 5000, f"x = {'9' * 40}… must be a whole number of fewer digits."),
        (float, "much", "x = much must be a number."),
        (Annotated[float, Field(allow_inf_nan=False)], "nan", "x = nan must be a finite number."),
        (bool, "perhaps", "x = perhaps must be true or false."),
        (Annotated[int, Field(gt=0)], "0", "x = 0 must be more than 0."),
        (Annotated[int, Field(ge=1)], "0", "x = 0 must be 1 or more."),
        (Annotated[int, Field(lt=9)], "9", "x = 9 must be less than 9."),
        (Annotated[int, Field(le=9)], "10", "x = 10 must be 9 or less."),
        (Literal["a", "b"], "c", "x = c must be 'a' or 'b'."),
        (Annotated[str, Field(min_length=1)], "", "x must not be empty."),
        (Annotated[str, Field(max_length=2)], "abc", "x = abc must be no longer than 2 letters."),
        (Annotated[list[int], Field(max_length=1)], [1, 2], "x must be at most 1 values."),
        (Annotated[int, AfterValidator(even)], "3", "x: an even number is wanted."),
        (int, "1\n\x1b[2J", "x = 1↵␛[2J must be a whole number."),
        (dict, "abc", "x: Input should be a valid dictionary."),
    ],
)
def test_what_is_taken_is_said(taken, given, said):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(taken).validate_python(given)
    (fault,) = caught.value.errors()
    assert sentence(fault | {"loc": ("query", "x")}) == said


def test_what_is_missing_is_named():
    fault = {"type": "missing", "loc": ("body", "message"), "input": None, "msg": "Field required"}
    assert sentence(fault) == "message is missing."
