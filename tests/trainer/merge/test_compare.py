"""A merge is held to base and adapter: what is not the sum of the two is not taken."""

from __future__ import annotations

import numpy as np
import pytest
from quantiser import QUANTISED_FTYPES, quantised_copy

from trainer.errors import ModelError, TrainingError
from trainer.gguf.file import GgufFile
from trainer.llama.quantiser import quantise
from trainer.merge.compare import compare
from trainer.merge.merging import merge
from trainer.merge.plan import make_plan


def left_out(before, after):
    return before


def turned(before, after):
    return 2 * before - after


WRONG = [left_out, turned]


def spoiled(plan, how):
    """The plan with ``how``'s rows, of what they were and ought to become."""
    original = plan.rewriting.rows

    def rows(name):
        first = 0
        for block in original(name):
            before = plan.factors.base.read_rows(name, first, first + len(block))
            first += len(block)
            yield how(before, block)

    object.__setattr__(plan.rewriting, "rows", rows)
    return plan


def made_of(plan, folder):
    """The result of a plan that nothing has looked at."""
    plan.rewriting.write(folder / "whole.gguf")
    quantise(plan.job(folder / "whole.gguf", folder / "made.gguf", 1))
    return folder / "made.gguf"


@pytest.fixture(scope="module")
def bases(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bases")
    return {"f32": tiny, "q4_0": quantised_copy(tiny, QUANTISED_FTYPES["Q4_0"], folder / "q.gguf")}


@pytest.mark.parametrize("of", ["f32", "q4_0"])
def test_a_right_merge_is_near_and_says_how_near(bases, of, adapter_for, tmp_path):
    adapter = adapter_for(bases[of], size=0.3)
    plan = make_plan(bases[of], adapter, "f16")
    found = merge(plan, tmp_path / "m.gguf", lambda p: compare(plan, p, threads=1), threads=1)
    assert found.is_met
    assert found.gap < 0.1 * found.change
    assert found.exact == (of == "f32")


@pytest.mark.parametrize("how", WRONG)
@pytest.mark.parametrize("of", ["f32", "q4_0"])
def test_llama_cpp_tells_a_merge_without_the_adapter_or_against_it(
    bases, of, how, adapter_for, tmp_path
):
    plan = spoiled(make_plan(bases[of], adapter_for(bases[of], size=0.3), "f16"), how)
    made = made_of(plan, tmp_path)
    with pytest.raises(
        TrainingError, match=r"differ by [\d.]+ nats from those of base and adapter"
    ):
        compare(plan, made, threads=1)


@pytest.mark.parametrize("how", WRONG)
@pytest.mark.parametrize(("size", "kind"), [(0.3, "f16"), (0.001, "f16"), (0.001, "q4_0")])
def test_a_wrong_sum_is_seen_whatever_its_size_and_the_type(
    bases, how, size, kind, adapter_for, tmp_path
):
    plan = spoiled(make_plan(bases["q4_0"], adapter_for(bases["q4_0"], size=size), kind), how)
    with pytest.raises(
        ModelError, match=r"the sum of blk\.0\.attn_k\.weight .* row \d+ is another"
    ):
        merge(plan, tmp_path / "out.gguf", lambda _: None, threads=1)
    assert not list(tmp_path.glob("*out.gguf*"))


def test_one_row_of_one_matrix_is_enough(bases, adapter_for, tmp_path):
    plan = make_plan(bases["f32"], adapter_for(bases["f32"], size=0.001), "f16")

    def but_one(before, after):
        return np.concatenate([before[:1], after[1:]])

    with pytest.raises(ModelError, match="row 0 is another"):
        merge(spoiled(plan, but_one), tmp_path / "out.gguf", lambda _: None, threads=1)


def test_a_coarse_type_that_loses_what_was_learnt_is_told_and_not_refused(
    bases, adapter_for, tmp_path
):
    plan = make_plan(bases["f32"], adapter_for(bases["f32"], size=0.01), "q4_0")
    found = merge(plan, tmp_path / "m.gguf", lambda p: compare(plan, p, threads=1), threads=1)
    assert found.gap > found.change
    assert not found.is_met
    assert "Q4_0" in GgufFile(tmp_path / "m.gguf").type_counts()
