"""Every architecture against llama.cpp: the base, quantised or not, adapters, and gradients."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from quantiser import QUANTISED_FTYPES, quantised_copy
from random_models import ARCHITECTURES
from small_runs import adapter_on, learner_on

from trainer.agreement import Parity
from trainer.gguf.architecture import SUPPORTED, describe, forced_metadata
from trainer.gguf.families import FAMILIES
from trainer.gguf.file import GgufFile
from trainer.model.decoder import Decoder
from trainer.model.inputs import GeGlu
from trainer.rollout.answers import SamplingSettings
from trainer.rollout.copies import dequantised_copy
from trainer.rollout.engine import RolloutEngine

CPU = torch.device("cpu")
CONTEXT = 128
TEXT = np.random.default_rng(0).integers(0, 250, 60).tolist()
PROMPT = TEXT[:12]
ANSWERS = [np.asarray(TEXT[20 : 20 + n], np.int32) for n in (14, 1, 9)]


@contextmanager
def llama_cpp(path, context=CONTEXT, concurrency=1):
    with RolloutEngine(
        path,
        ctx=context,
        concurrency=concurrency,
        max_prompt_tokens=64,
        group_size=1,
        settings=SamplingSettings(1.0, 1.0, 1),
        exact=True,
        threads=1,
        forced=forced_metadata(describe(GgufFile(path)), context),
    ) as engine:
        yield engine


def decoder_of(path, context=CONTEXT):
    return Decoder(GgufFile(path), CPU, context=context)


def both_logits(path, read=None, context=CONTEXT):
    """Torch's logits of ``read``, and llama.cpp's of ``path``, which is the same where not said."""
    with llama_cpp(path, context) as engine:
        theirs = torch.from_numpy(engine.logits(TEXT))
    return decoder_of(read or path, context).logits(TEXT, None), theirs


@dataclass(frozen=True)
class Limits:
    """The largest difference of a logit, the mean one of log-probabilities, and that of an
    adapter's effect."""

    logit: float = 1e-3
    logprob: float = 1e-4
    adapter: float = 1e-4


def limits(name):
    """ggml looks gelu up in a table of F16, which alone is worth these differences."""
    gelu = FAMILIES[name].activation == "gelu"
    return Limits(5e-3, 5e-4, 1e-3) if gelu else Limits()


def logprob_gap(mine, theirs):
    return (mine.log_softmax(-1) - theirs.log_softmax(-1)).abs().mean()


def assert_equal(name, mine, theirs):
    torch.testing.assert_close(mine, theirs, rtol=0, atol=limits(name).logit)
    assert logprob_gap(mine, theirs) <= limits(name).logprob


def test_every_architecture_is_tried_here():
    assert set(ARCHITECTURES) == set(SUPPORTED)


@pytest.fixture(scope="module", params=sorted(ARCHITECTURES))
def name(request):
    return request.param


@pytest.fixture(scope="module")
def model(name, random_model):
    return random_model(name)


@pytest.fixture(scope="module")
def decoder(model):
    return decoder_of(model)


def test_logits_equal_llama_cpp(name, model):
    assert_equal(name, *both_logits(model))


WINDOW = ("attention.sliding_window", 8)
YARN = (
    ("rope.scaling.type", "yarn"),
    ("rope.scaling.factor", 4.0),
    ("rope.scaling.original_context_length", 400),
)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("llama", {"joined": True, "biases": True}, id="llama, joined input"),
        pytest.param("llama", {"own": (WINDOW,)}, id="llama, a window that llama.cpp ignores"),
        pytest.param("llama", {"own": (("rope.scaling.attn_factor", 1.3),)}, id="llama, amplitude"),
        pytest.param("qwen2", {"tied": True, "kv_heads": 1}, id="qwen2, tied"),
        pytest.param("gemma2", {"own": ()}, id="gemma2, nothing stated"),
        pytest.param("gemma3", {"own": ()}, id="gemma3, no window"),
        pytest.param("gemma3", {"own": (WINDOW,), "layers": 7}, id="gemma3, a window alone"),
        pytest.param(
            "gemma3",
            {"own": (WINDOW, ("attention.sliding_window_pattern", 3)), "layers": 4},
            id="gemma3, every third layer global",
        ),
        pytest.param(
            "phi3",
            {"own": (), "length_factors": False, "rotary_size": 0, "joined": False},
            id="phi3, plain",
        ),
        pytest.param(
            "olmo2",
            {"own": (WINDOW,), "layers": 5, "rope_scale": 4.0},
            id="olmo2, window of olmo3",
        ),
        pytest.param(
            "granite",
            {"own": (("logit_scale", 4.0), ("rope.scaling.finetuned", False))},
            id="granite, without rotary",
        ),
        pytest.param("llama", {"own": YARN, "rope_factors": True}, id="llama, YaRN and factors"),
        pytest.param("qwen2", {"own": YARN, "head_size": 16, "heads": 4}, id="qwen2, YaRN"),
        pytest.param(
            "olmo2",
            {"own": (WINDOW, *YARN, ("rope.scaling.attn_factor", 1.2)), "layers": 5},
            id="olmo2, YaRN of olmo3",
        ),
        pytest.param("granite", {"rope_factors": True, "biases": True}, id="granite, factors"),
    ],
)
def test_variants_equal_llama_cpp(name, options, random_model):
    assert_equal(name, *both_logits(random_model(name, **options)))


@pytest.mark.parametrize("context", [90, 110])
def test_factors_for_short_and_long_contexts_go_by_the_longest_text(context, random_model):
    """The two tensors part at 100; llama.cpp by itself would go by its cache, here of 260 cells."""
    path = random_model("phi3")
    with llama_cpp(path, context, concurrency=4) as engine:
        theirs = torch.from_numpy(engine.logits(TEXT))
    assert_equal("phi3", decoder_of(path, context).logits(TEXT, None), theirs)


def gelu_as_ggml(_, raw):
    """Gate and result rounded to F16, as in ggml's table."""
    gate, up = raw.chunk(2, dim=-1)
    table = F.gelu(gate.half().float(), approximate="tanh").half().float()
    inside = torch.where(gate >= 10, gate, table)
    return torch.where(gate <= -10, 0.0, inside) * up


@pytest.mark.parametrize("name", [n for n, f in FAMILIES.items() if f.activation == "gelu"])
def test_ggmls_table_of_gelu_is_all_that_differs(name, random_model, monkeypatch):
    monkeypatch.setattr(GeGlu, "forward", gelu_as_ggml)
    assert logprob_gap(*both_logits(random_model(name))) < 2e-5


@pytest.mark.parametrize(("name", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_deepest_gemmas_scale_attention_by_width_over_heads(name, layers, random_model):
    """Roundings of gelu add up over so many layers; another scale is worth a hundred times that."""
    path = random_model(name, layers=layers, own=(WINDOW,), width=32, heads=2)
    assert describe(GgufFile(path)).scales.attention == 16**-0.5
    assert logprob_gap(*both_logits(path)) < 2e-3


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K_M"])
def test_quantised_weights_are_read_as_llama_cpp_reads_them(name, kind, random_model, tmp_path):
    """Rows of 256, which every block size divides; llama.cpp computes with its own F32 copy."""
    shape = {"width": 256, "ff_width": 256, "heads": 4, "kv_heads": 2, "head_size": 64}
    options = ARCHITECTURES[name]
    if "experts" in options:
        shape["experts"] = (4, 2, 256)
    if "rotary_size" in options:
        shape["rotary_size"] = 48
    base = random_model(name, **shape)
    quantised = quantised_copy(base, QUANTISED_FTYPES[kind], tmp_path / "quantised.gguf")
    copy = dequantised_copy(quantised, "f32", tmp_path, digest=kind)
    assert_equal(name, *both_logits(copy, read=quantised))


def test_a_random_adapter_of_every_matrix_does_the_same_on_both_sides(name, model, decoder):
    with llama_cpp(model) as engine:
        found = Parity(TEXT, decoder, engine, "f32").probe(adapter_on(decoder, moved=False))
    assert found.change > 0.05
    assert found.error < limits(name).adapter
    assert found.gap < limits(name).adapter


def test_packing_changes_no_score(decoder):
    packed, single = learner_on(decoder), learner_on(decoder, fanout="off")
    mine = packed.score(PROMPT, ANSWERS, packed.adapter)
    expected = single.score(PROMPT, ANSWERS, packed.adapter)
    torch.testing.assert_close(mine, expected, rtol=0, atol=2e-5)


def gradients(decoder, **cut):
    learner = learner_on(decoder, **cut)
    learner.accumulate(PROMPT, ANSWERS, lambda out: -out.scores.logprobs.sum())
    return {name: p.grad for name, p in learner.adapter.named_parameters()}


def test_how_a_step_is_cut_changes_no_gradient(decoder):
    expected = gradients(decoder, fanout="off")
    for cut in ({}, {"recompute": True, "chunk": 5}):
        for name, value in gradients(decoder, **cut).items():
            torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=2e-5)


def test_gradients_are_slopes(decoder):
    """Of every factor, along its own gradient, by a central difference."""
    learner = learner_on(decoder)
    adapter = learner.adapter

    def loss():
        scored = learner.score(PROMPT, ANSWERS, adapter)
        return -sum(float(s.double().sum()) for s in scored)

    for name, gradient in gradients(decoder).items():
        norm = gradient.norm()
        assert norm > 0, name
        parameter = dict(adapter.named_parameters())[name]
        # Short, or a row of a mixture may choose another expert within it.
        step = gradient / norm * 2e-3
        with torch.no_grad():
            parameter += step
            above = loss()
            parameter -= 2 * step
            below = loss()
            parameter += step
        assert (above - below) / 4e-3 == pytest.approx(float(norm), rel=0.03, abs=2e-2), name


# -- real weights --------------------------------------------------------------------------------

PROSE = (
    "The window of this model is 512 tokens, so that a text must be longer than that for its local "
    "layers to forget how it began. Every sixth layer sees all of it. "
)


@pytest.mark.full
def test_gemma_3_agrees_with_llama_cpp_beyond_its_window(gemma3, gemma3_copy):
    """By probability, as a sampler meets the tokens. Logits of this model are ten times as large as
    those of the random ones, and so is what ggml's table of gelu is worth."""
    decoder = decoder_of(gemma3, context=768)
    assert {kind.window for kind in decoder.architecture.kinds} == {512, None}
    with llama_cpp(gemma3_copy("f32"), context=768) as engine:
        tokens = [2, *engine.vocabulary.tokenize(PROSE * 18, special=False)]
        assert len(tokens) > 512 + 64
        theirs = torch.from_numpy(engine.logits(tokens)[-64:])
    mine = decoder.logits(tokens, None)[-64:]
    gap = (mine.log_softmax(-1) - theirs.log_softmax(-1)).abs() * mine.softmax(-1)
    assert gap.sum(-1).mean() < 2e-3


@pytest.mark.full
def test_an_adapter_of_gemma_3_does_the_same_on_both_sides(gemma3, gemma3_copy):
    decoder = decoder_of(gemma3)
    with llama_cpp(gemma3_copy("f32")) as engine:
        tokens = [2, *engine.vocabulary.tokenize(PROSE, special=False)]
        found = Parity(tokens, decoder, engine, "f32").probe(adapter_on(decoder, moved=False))
    assert found.error < 0.01 * found.change
