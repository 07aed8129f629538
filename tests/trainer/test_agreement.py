from __future__ import annotations

import pytest
import torch
from quantiser import QUANTISED_FTYPES, quantised_copy
from small_runs import SMALL

from trainer.agreement import Parity
from trainer.errors import TrainingError
from trainer.export import write
from trainer.gguf.file import GgufFile
from trainer.gguf.tensors import select_targets
from trainer.model.adapter import Adapter
from trainer.model.decoder import Decoder
from trainer.rollout.answers import SamplingSettings
from trainer.rollout.engine import RolloutEngine

CPU = torch.device("cpu")
TEXT = (72, 101, 108, 108, 111, 44, 32, 119)


def open_engine(model):
    return RolloutEngine(
        model,
        ctx=48,
        concurrency=1,
        max_prompt_tokens=len(TEXT),
        group_size=1,
        settings=SamplingSettings(1.0, 1.0, 8),
        exact=True,
        threads=1,
    )


@pytest.fixture(scope="module")
def model(random_llama):
    return random_llama(**SMALL | {"layers": 2})


@pytest.fixture(scope="module")
def decoder(model):
    return Decoder(GgufFile(model), CPU, context=48)


@pytest.fixture(scope="module")
def engine(model):
    with open_engine(model) as engine:
        yield engine


@pytest.fixture
def parity(decoder, engine):
    return Parity(TEXT, decoder, engine, "f32")


def make_adapter(decoder, *, size=0.1, alpha=4.0, rank=2, targets=("auto",)):
    names = select_targets(decoder.architecture, targets)
    adapter = Adapter(decoder.architecture, names, rank=rank, alpha=alpha, seed=0, device=CPU)
    return adapter.random(size)


@pytest.fixture
def file_of(tmp_path):
    def _file_of(adapter, dtype="f32"):
        path = tmp_path / "adapter.gguf"
        write(path, adapter, dtype=dtype)
        return path

    return _file_of


def test_the_same_function_on_both_sides(parity, decoder, file_of):
    adapter = make_adapter(decoder)
    found = parity.compare(adapter, file_of(adapter))
    assert found.gap < 1e-5
    assert found.error < 1e-5
    # the change by hand: |Δ log p|, weighted by the adapted probabilities, averaged over positions
    mine, base = (decoder.logits(TEXT, a).double().log_softmax(-1) for a in (adapter, None))
    change = (mine.exp() * (mine - base).abs()).sum() / len(TEXT)
    assert found.change == pytest.approx(float(change), rel=1e-4)
    assert found.change > 0.1


def test_factors_rounded_to_f16_still_agree(parity, decoder, file_of):
    adapter = make_adapter(decoder)
    found = parity.compare(adapter, file_of(adapter, "f16"))
    assert 1e-6 < found.gap < 5e-3


@pytest.mark.parametrize("size", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("factor", [0.25, 2.0])
def test_a_file_with_another_alpha_is_refused(parity, decoder, file_of, size, factor):
    adapter = make_adapter(decoder, size=size)
    path = file_of(make_adapter(decoder, size=size, alpha=adapter.alpha * factor))
    with pytest.raises(TrainingError, match=r"adapter\.gguf: .* does not compute what torch"):
        parity.compare(adapter, path)
    assert path.exists()


def test_a_base_that_torch_reads_otherwise_is_refused(model, engine):
    """Rotary angles from another base: what a misread key of the metadata would give."""
    wrong = Decoder(GgufFile(model), CPU, context=48)
    wrong.turns = {r: turn.roll(1, dims=0) for r, turn in wrong.turns.items()}
    with pytest.raises(TrainingError, match=r"llama\.cpp and torch disagree on the base model"):
        Parity(TEXT, wrong, engine, "f32").check_base()


def test_the_base_agrees_with_itself(parity):
    assert parity.check_base() < 1e-5


def test_a_file_that_lacks_factors_is_refused(parity, decoder, file_of):
    """As when an adapter is accepted and part of it is never applied."""
    adapter = make_adapter(decoder, targets=["q", "k", "v", "o", "ffn_down"])
    path = file_of(make_adapter(decoder, targets=["q", "k"]))
    with pytest.raises(TrainingError, match="does not compute what torch"):
        parity.compare(adapter, path)


def test_a_merged_model_that_lacks_a_small_change_is_refused(parity, decoder, engine):
    """A base in place of the merged model, with less between the two than rounding may be worth."""
    adapter = make_adapter(decoder, size=0.02)
    engine.swap_adapter(None)
    with pytest.raises(TrainingError, match=r"where the adapter changes them by 0\.0[234]"):
        parity.compare_merged(adapter, engine)


def test_a_difference_that_is_no_number_is_no_agreement(parity, decoder, file_of):
    adapter = make_adapter(decoder)
    path = file_of(adapter)
    adapter.factors["blk.1.ffn_down.weight"][1].fill_(float("nan"))
    with pytest.raises(TrainingError, match="not finite: training has diverged"):
        parity.compare(adapter, path)


def test_the_sampler_goes_on_with_the_file_that_was_compared(parity, decoder, engine, file_of):
    adapter = make_adapter(decoder)
    parity.compare(adapter, file_of(adapter))
    theirs = torch.from_numpy(engine.logits(TEXT))
    torch.testing.assert_close(theirs, decoder.logits(TEXT, adapter), rtol=0, atol=1e-3)


@pytest.mark.parametrize(("rank", "alpha"), [(1, 1.0), (2, 64.0), (16, 1.0)])
def test_a_probe_changes_the_model_well_whatever_rank_and_alpha_are(
    parity, decoder, engine, rank, alpha
):
    like = make_adapter(decoder, size=0.0, rank=rank, alpha=alpha)
    before = like.state()
    found = parity.probe(like)
    assert 0.1 < found.change < 20.0
    assert found.error < 1e-4
    assert all(torch.equal(like.state()[name], value) for name, value in before.items())
    # afterwards the sampler has no adapter
    theirs = torch.from_numpy(engine.logits(TEXT))
    torch.testing.assert_close(theirs, decoder.logits(TEXT, None), rtol=0, atol=1e-3)


def test_a_quantised_base_agrees_as_well_as_its_8_bit_activations_allow(random_llama, tmp_path):
    """The gap of the bare models is not held against the adapter."""
    base = random_llama(width=256, ff_width=256, heads=4, kv_heads=2, head_size=64)
    path = quantised_copy(base, QUANTISED_FTYPES["Q4_0"], tmp_path / "q4.gguf", pure=True)
    decoder = Decoder(GgufFile(path), CPU, context=48)
    with open_engine(path) as engine:
        found = Parity(TEXT, decoder, engine, "file").probe(make_adapter(decoder))
    assert found.gap > 1e-3
    assert found.error < 0.5 * found.change
