"""How each layer sees positions, by what the metadata says."""

from __future__ import annotations

import math

import pytest

from trainer.errors import ModelError
from trainer.gguf.architecture import describe, forced_metadata
from trainer.gguf.file import GgufFile

WINDOW = ("attention.sliding_window", 16)


def kinds_of(path):
    return describe(GgufFile(path)).kinds


def windows(path):
    return [kind.window for kind in kinds_of(path)]


def test_every_layer_of_a_llama_turns_and_sees_everything(random_model):
    [kind] = set(kinds_of(random_model("llama")))
    assert (kind.window, kind.rotary.pairs, kind.rotary.size) == (None, "neighbours", 8)
    assert (kind.rotary.base, kind.rotary.scale, kind.rotary.amplitude) == (10_000.0, 1.0, 1.0)


def test_gemma2_is_local_in_every_other_layer(random_model):
    assert windows(random_model("gemma2", layers=4, own=())) == [4096, None, 4096, None]


def test_gemma3_is_global_in_every_sixth_layer_with_another_base_there(random_model):
    kinds = kinds_of(random_model("gemma3", layers=7, own=(WINDOW, ("rope.freq_base", 1e6))))
    assert [k.window for k in kinds] == [16] * 5 + [None, 16]
    assert [k.rotary.base for k in kinds[4:6]] == [10_000.0, 1e6]
    assert [k.rotary.scale for k in kinds[4:6]] == [1.0, 0.25]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ([False, True, True], [None, 16, 16]),
        (2, [16, None, 16]),
        (1, [None, None, None]),
        (0, [16, 16, 16]),
    ],
)
def test_a_file_may_name_the_local_layers(random_model, pattern, expected):
    own = (WINDOW, ("attention.sliding_window_pattern", pattern))
    assert windows(random_model("gemma3", layers=3, own=own)) == expected


def test_a_pattern_shorter_than_the_layers_is_refused(random_model):
    own = (WINDOW, ("attention.sliding_window_pattern", [True]))
    with pytest.raises(ModelError, match="pattern has 1 values for 2 layers"):
        kinds_of(random_model("gemma3", own=own))


def test_every_fourth_layer_of_smollm3_has_no_rotary_embedding(random_model):
    kinds = kinds_of(random_model("smollm3", layers=8))
    assert [k.rotary is None for k in kinds] == [False, False, False, True] * 2


def test_local_layers_of_olmo2_are_unscaled(random_model):
    own = (WINDOW, ("rope.scaling.attn_factor", 1.5))
    near, *_, far = kinds_of(random_model("olmo2", layers=4, rope_scale=4.0, own=own))
    assert (near.rotary.scale, near.rotary.amplitude, near.window) == (1.0, 1.0, 16)
    assert (far.rotary.scale, far.rotary.amplitude, far.window) == (0.25, 1.5, None)


def test_yarn_sharpens_attention_by_the_logarithm_of_its_factor(random_model):
    own = (("rope.scaling.type", "yarn"), ("rope.scaling.attn_factor", 1.5))
    near, *_, far = kinds_of(random_model("olmo2", layers=4, rope_scale=4.0, own=(WINDOW, *own)))
    assert (near.rotary.yarn, near.rotary.amplitude) == (None, 1.0)
    assert far.rotary.yarn.context == 256, "that of the model where the file names none"
    assert far.rotary.amplitude == pytest.approx(1.5 * (1 + 0.1 * math.log(4)))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("llama", {"rotary_size": 4}, "rope.dimension_count = 4; .* the head size 8, and"),
        ("phi3", {"rotary_size": 10}, "rope.dimension_count = 10; .* 8 or less"),
        ("phi3", {"rotary_size": 3}, "an even number"),
        ("qwen2", {"own": (("rope.scaling.type", "longrope"),)}, "'longrope' is not supported"),
        (
            "gemma3",
            {"own": (("attention.key_length_swa", 4),)},
            "_swa = 4, and other layers have 8",
        ),
        (
            "gemma3",
            {"own": (("rope.dimension_count_swa", 4),)},
            "_swa = 4, and other layers have 8",
        ),
        ("gemma3", {"own": (("rope.scaling.type", "yarn"),)}, "'yarn' is not supported"),
        ("llama", {"own": (("rope.scaling.factor", -2.0),)}, "factor = -2 is negative"),
        ("gemma3", {"own": (("attention.sliding_window", "x"),)}, "a whole number is expected"),
    ],
)
def test_what_is_not_computed_is_refused(random_model, name, options, words):
    with pytest.raises(ModelError, match=words):
        kinds_of(random_model(name, **options))


def test_the_sampler_is_told_which_rotary_factors_the_texts_need(random_model):
    """Those of phi3 part at 100 tokens here; the others have no choice."""
    key = "phi3.rope.scaling.original_context_length"
    a = describe(GgufFile(random_model("phi3")))
    assert forced_metadata(a, 100) == {key: 2**31 - 1}
    assert forced_metadata(a, 101) == {key: 1}
    assert forced_metadata(describe(GgufFile(random_model("llama"))), 101) == {}
