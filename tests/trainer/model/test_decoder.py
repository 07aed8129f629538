"""The decoder against llama.cpp, and against itself however a step is cut."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from quantiser import QUANTISED_FTYPES, quantised_copy

from trainer.errors import ModelError
from trainer.gguf.file import GgufFile
from trainer.gguf.tensors import select_targets
from trainer.model.adapter import Adapter
from trainer.model.decoder import Decoder
from trainer.model.logprobs import score_tokens
from trainer.model.packing import pack
from trainer.rollout.answers import SamplingSettings
from trainer.rollout.copies import dequantised_copy
from trainer.rollout.engine import RolloutEngine

CPU = torch.device("cpu")
TEXT = np.random.default_rng(0).integers(0, 250, 60).tolist()


@contextmanager
def llama_cpp(path):
    with RolloutEngine(
        path,
        ctx=128,
        concurrency=1,
        max_prompt_tokens=64,
        group_size=1,
        settings=SamplingSettings(1.0, 1.0, 1),
        exact=True,
        threads=2,
    ) as engine:
        yield engine


def both_logits(path, tokens=TEXT):
    decoder = Decoder(GgufFile(path), CPU, context=128)
    with llama_cpp(path) as engine:
        return decoder.logits(tokens, None), torch.from_numpy(engine.logits(tokens))


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param({}, id="8 heads on 2, untied"),
        pytest.param({"head_size": 24}, id="head size unlike width / heads"),
        pytest.param({"tied": True}, id="tied"),
        pytest.param({"rope_factors": True, "head_size": 16}, id="rope factors"),
        pytest.param({"rope_scale": 4.0}, id="linear rope scaling"),
        pytest.param({"biases": True}, id="biases"),
        pytest.param({"heads": 3, "kv_heads": 1, "width": 48, "head_size": 16}, id="3 on 1"),
        pytest.param({"heads": 4, "kv_heads": 4, "head_size": 16, "layers": 3}, id="no sharing"),
    ],
)
def test_logits_equal_llama_cpp_on_odd_shapes(random_llama, shape):
    mine, theirs = both_logits(random_llama(**shape))
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-3)


@pytest.fixture(scope="module")
def wide(random_llama):
    """Rows of 256, which every block size divides."""
    return random_llama(width=256, ff_width=512, heads=8, kv_heads=2, head_size=32)


SLOWLY_QUANTISED = {"IQ1_M", "IQ1_S", "IQ2_M", "IQ2_S", "IQ3_XXS"}
"""The tables that they search take seconds to make."""


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.full) if kind in SLOWLY_QUANTISED else kind
        for kind in sorted(QUANTISED_FTYPES)
    ],
)
def test_every_type_of_llama_cpps_quantiser_is_read_as_llama_cpp_reads_it(wide, tmp_path, kind):
    """llama.cpp's own F32 copy of the quantised file is the oracle: on it the sampler multiplies
    with the very weights that torch must have read, and not with 8-bit activations."""
    quantised = quantised_copy(wide, QUANTISED_FTYPES[kind], tmp_path / f"{kind}.gguf")
    copy = dequantised_copy(quantised, "f32", tmp_path, digest=kind)
    mine = Decoder(GgufFile(quantised), CPU, context=128).logits(TEXT, None)
    with llama_cpp(copy) as engine:
        theirs = torch.from_numpy(engine.logits(TEXT))
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-3)


def test_smollm2_agrees_with_llama_cpp_on_an_f32_copy(smollm2, smollm2_copy):
    tokens = np.random.default_rng(1).integers(3, 49_000, 48).tolist()
    mine = Decoder(GgufFile(smollm2), CPU, context=128).logits(tokens, None)
    with llama_cpp(smollm2_copy("f32")) as engine:
        theirs = torch.from_numpy(engine.logits(tokens))
    assert (mine - theirs).abs().max() <= 1e-3
    gap = (mine.log_softmax(-1) - theirs.log_softmax(-1)).abs()
    assert gap.mean() <= 1e-4


def test_an_unknown_tensor_is_refused_and_not_left_out(random_llama):
    path = random_llama(layers=3, extra=(("llama.block_count", 2),))
    with pytest.raises(ModelError, match=r"tensor blk\.2\."):
        Decoder(GgufFile(path), CPU, context=64)


# -- cutting a step ------------------------------------------------------------------------------

PROMPT = TEXT[:12]
ANSWERS = [np.asarray(TEXT[20 : 20 + n], np.int32) for n in (5, 1, 9, 3, 9)]
WEIGHTS = torch.linspace(-1.0, 1.0, sum(len(a) for a in ANSWERS))


@pytest.fixture(scope="module")
def decoder(random_llama):
    return Decoder(GgufFile(random_llama(head_size=24)), CPU, context=64)


def trained_adapter(decoder):
    names = select_targets(decoder.architecture, ["q", "v", "o", "ffn_up", "ffn_down"])
    adapter = Adapter(decoder.architecture, names, rank=3, alpha=6.0, seed=1, device=CPU)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for _, B in adapter.factors.values():
            B.copy_(torch.randn(B.shape, generator=generator) * 0.1)
    return adapter


def scores_and_gradient(decoder, cut, *, chunk=512, recompute=False):
    """Log-probabilities in the answers' order, and the gradient of their weighted sum."""
    adapter = trained_adapter(decoder)
    offsets = np.cumsum([0] + [len(a) for a in ANSWERS])
    result = torch.zeros(offsets[-1])
    for members in cut:
        packed = pack(PROMPT, [ANSWERS[i] for i in members], CPU)
        states = decoder.states(packed, adapter, recompute=recompute)
        scores = score_tokens(states, decoder.head, packed.targets, temperature=0.7, chunk=chunk)
        places = np.concatenate([np.arange(offsets[i], offsets[i + 1]) for i in members])
        (scores.logprobs * WEIGHTS[places]).sum().backward()
        result[places] = scores.logprobs.detach()
    return result, {name: p.grad for name, p in adapter.named_parameters()}


ONE_BY_ONE = [(0,), (1,), (2,), (3,), (4,)]


@pytest.mark.parametrize(
    ("cut", "options"),
    [
        pytest.param([(0, 1, 2, 3, 4)], {}, id="all packed"),
        pytest.param([(4, 2), (0, 3, 1)], {}, id="two passes in another order"),
        pytest.param([(1,), (0, 2, 3, 4)], {"chunk": 4}, id="chunks of four"),
        pytest.param([(0, 1, 2, 3, 4)], {"recompute": True}, id="activations recomputed"),
    ],
)
def test_how_a_step_is_cut_changes_nothing(decoder, cut, options):
    expected, gradient = scores_and_gradient(decoder, ONE_BY_ONE)
    scores, other = scores_and_gradient(decoder, cut, **options)
    torch.testing.assert_close(scores, expected, rtol=0, atol=2e-5)
    for name, value in gradient.items():
        torch.testing.assert_close(other[name], value, rtol=1e-4, atol=1e-5)


def test_packed_scores_equal_those_of_the_plain_text(decoder):
    """Each answer on its own, unpacked, from the logits of the whole text: the first token is
    predicted by the prompt's last, and the last token is predicted once."""
    adapter = trained_adapter(decoder)
    packed = pack(PROMPT, ANSWERS, CPU)
    scores = score_tokens(
        decoder.states(packed, adapter),
        decoder.head,
        packed.targets,
        temperature=0.7,
        chunk=512,
    )
    expected = []
    for answer in ANSWERS:
        logits = decoder.logits([*PROMPT, *answer.tolist()], adapter)[len(PROMPT) - 1 : -1]
        logprobs = (logits / 0.7).log_softmax(-1)
        expected.append(logprobs.gather(1, torch.from_numpy(answer).long()[:, None])[:, 0])
    torch.testing.assert_close(scores.logprobs.detach(), torch.cat(expected), rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("prompt", "lengths"),
    [
        pytest.param(60, (10,), id="one answer"),
        pytest.param(60, (6, 2), id="the longest of two, which comes first"),
        pytest.param(60, (2, 6), id="the longest of two, which comes last"),
        pytest.param(65, (1,), id="the prompt alone"),
    ],
)
def test_a_text_longer_than_the_context_is_refused(decoder, prompt, lengths):
    answers = [np.arange(n, dtype=np.int32) for n in lengths]
    with pytest.raises(ValueError, match="exceeds the context 64"):
        decoder.states(pack([1] * prompt, answers, CPU), None)


def test_a_text_that_fills_the_context_is_computed(decoder):
    answers = [np.arange(n, dtype=np.int32) for n in (5, 2)]
    assert decoder.states(pack([1] * 60, answers, CPU), None).isfinite().all()
