from __future__ import annotations

import pytest

from trainer.health.guide import GUIDE
from trainer.health.headline import headline_of


@pytest.mark.parametrize("algorithm", ["grpo", "ppo", "sft"])
def test_the_guide_has_the_metric_that_a_run_is_about(algorithm):
    main = headline_of(algorithm)
    (entry,) = (entry for entry in GUIDE if entry.name == main.name)
    assert algorithm in entry.algorithms
    assert entry.healthy.trend == ("falling" if main.lower_is_better else "rising")


def test_a_loss_is_better_below_and_a_reward_above():
    assert headline_of("sft").is_better(1.0, 2.0)
    assert not headline_of("grpo").is_better(1.0, 2.0)
    assert not headline_of("ppo").is_better(1.0, 1.0)
