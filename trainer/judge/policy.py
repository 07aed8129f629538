"""What follows where the judge gave no verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from trainer.judge.judge import Ruling
from trainer.judge.questions import JudgeError


def groups_to_drop(
    rulings: Sequence[Ruling],
    *,
    judge_failure: Literal["drop_group", "fail"],
    max_dropped_fraction: float,
) -> list[int]:
    """The places of the groups that an update goes on without.

    Raises JudgeError where one failed and ``judge_failure`` is ``fail``, or where more than
    ``max_dropped_fraction`` of the update's groups failed.
    """
    failed = [place for place, ruling in enumerate(rulings) if ruling.failure is not None]
    if not failed:
        return []
    first = rulings[failed[0]].failure
    assert first is not None, "it was looked for"
    reason = f"The first, group {failed[0] + 1}: {first.reason}."
    count = f"The judge gave no verdict on {len(failed)} of {len(rulings)} groups of this update"
    if judge_failure == "fail":
        raise JudgeError(
            f'{count}, and judge_failure = "fail" allows none. {reason} See to the judge, or set '
            'judge_failure = "drop_group".'
        )
    if len(failed) > max_dropped_fraction * len(rulings):
        raise JudgeError(
            f"{count}, and max_judge_dropped_fraction = {max_dropped_fraction:g} is the most that "
            f"may be lost. {reason} See to the judge; `retrograd judge test` shows what it says."
        )
    return failed
