from __future__ import annotations

from app.terminal.fields import fields_of, legend


def test_the_legend_explains_the_columns_of_the_run_and_no_others(info, ppo_info):
    grpo, ppo = (dict(legend(run, fields_of(run))) for run in (info, ppo_info))
    assert list(grpo) == ["dead groups", "clipped", "KL", "cut off", "loss"]
    assert list(ppo) == ["critic", "clipped", "KL", "cut off", "loss"]
    assert "by construction" in grpo["loss"]
    assert "whitened" in ppo["loss"]


def test_a_column_that_does_not_fit_is_not_explained(info):
    short = [field for field in fields_of(info) if field.title != "cut off"]
    assert "cut off" not in dict(legend(info, short))


def test_a_configuration_without_a_section_of_its_own_still_has_columns(info):
    info.params.pop("grpo")
    assert "KL/answer" not in [field.title for field in fields_of(info)]


def test_a_run_of_sft_has_its_loss_and_nothing_of_answers(sft_info):
    titles = [field.title for field in fields_of(sft_info)]
    assert titles == ["loss", "epoch", "tokens", "learning rate", "grad norm"]
    assert list(dict(legend(sft_info, fields_of(sft_info)))) == ["loss", "epoch"]
