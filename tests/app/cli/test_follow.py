from __future__ import annotations

import pytest

from app.cli.follow import _line
from app.store.models import Run


@pytest.mark.parametrize(
    ("algorithm", "words"), [("grpo", "reward 0.100 → 0.500"), ("sft", "loss 0.100 → 0.500")]
)
def test_a_line_names_what_the_run_is_about(algorithm, words):
    run = Run(
        algorithm=algorithm, status="stopping", completed=3, planned=9, sparkline=[0.1, None, 0.5]
    )
    assert _line(run) == f"stopping, update 3 of 9, {words}"
