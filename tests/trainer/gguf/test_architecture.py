from __future__ import annotations

import pytest

from trainer.errors import ConfigError, ModelError
from trainer.gguf.architecture import describe
from trainer.gguf.file import GgufFile
from trainer.gguf.tensors import check_tensors, select_targets


def test_head_size_need_not_be_width_over_heads(random_llama):
    a = describe(GgufFile(random_llama(width=64, heads=8, kv_heads=2, head_size=24)))
    assert (a.query_width, a.kv_width, a.head_size) == (192, 48, 24)


def test_tied_output_is_told_by_its_absence(random_llama):
    assert describe(GgufFile(random_llama(tied=True))).tied
    assert not describe(GgufFile(random_llama(tied=False))).tied


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("qwen35", "gated delta rule"),
        ("lfm2", "short gated convolution"),
        ("gemma4", "layers that share keys and values"),
    ],
)
def test_what_an_architecture_is_refused_for_is_named(random_model, name, words):
    with pytest.raises(ModelError, match=rf"'{name}' is not supported \(not computed: .*{words}"):
        describe(GgufFile(random_model(name)))


def test_scales_that_a_granite_states(random_model):
    scales = describe(GgufFile(random_model("granite"))).scales
    stated = (scales.embedding, scales.residual, scales.attention, scales.logits)
    assert stated == pytest.approx((6.0, 0.4, 0.3, 0.25))


def test_caps_of_a_gemma2_and_those_it_has_without_stating_them(random_model):
    stated = describe(GgufFile(random_model("gemma2"))).scales
    assert (stated.attention_cap, stated.logit_cap) == (2.0, 6.0)
    usual = describe(GgufFile(random_model("gemma2", own=()))).scales
    assert (usual.attention_cap, usual.logit_cap) == (50.0, 30.0)
    other = describe(GgufFile(random_model("gemma3"))).scales
    assert (other.attention_cap, other.logit_cap) == (None, None)


def test_an_expert_without_a_width_of_its_own_has_a_share_of_the_whole(random_model):
    a = describe(GgufFile(random_model("qwen3moe", experts=(6, 2, 0), ff_width=96)))
    assert (a.experts.count, a.experts.used, a.experts.width, a.ff_width) == (6, 2, 48, 0)


def test_groups_of_experts_are_refused(random_model):
    with pytest.raises(ModelError, match="groups of experts"):
        describe(GgufFile(random_model("qwen3moe", own=(("expert_group_count", 2),))))


@pytest.mark.parametrize("experts", [(6, 7, 32), (6, 0, 32)])
def test_experts_that_cannot_be_are_refused(random_model, experts):
    with pytest.raises(ModelError, match="the metadata's experts cannot be"):
        describe(GgufFile(random_model("qwen3moe", experts=experts)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"architecture": "mamba"}, r"'mamba' is not supported; retrograd trains llama"),
        ({"extra": (("llama.expert_count", 8),)}, "mixture of experts"),
        ({"extra": (("llama.expert_count", "abc"),)}, r"expert_count = 'abc' .*a whole number"),
        ({"extra": (("split.count", 2),)}, "one part of a model in 2 files"),
        ({"extra": (("llama.rope.scaling.type", "su"),)}, "'su' is not supported"),
        ({"heads": 6, "kv_heads": 4}, "cannot share"),
        ({"extra": (("general.type", "adapter"),)}, "this is an adapter"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(random_llama, options, words):
    with pytest.raises(ModelError, match=words):
        describe(GgufFile(random_llama(**options)))


def test_a_missing_tensor_is_named(random_llama):
    file = GgufFile(random_llama(drop=("blk.1.ffn_up.weight",)))
    with pytest.raises(ModelError, match=r"1 tensors are missing, first blk\.1\.ffn_up\.weight"):
        check_tensors(file, describe(file))


def test_a_tensor_of_another_shape_is_named(random_llama):
    file = GgufFile(random_llama(ff_width=96, extra=()))
    wider = describe(GgufFile(random_llama(ff_width=128)))
    with pytest.raises(ModelError, match=r"has shape \(96, 64\)"):
        check_tensors(file, wider)


def test_targets_by_alias_pattern_and_auto(random_llama):
    a = describe(GgufFile(random_llama(layers=2)))
    assert select_targets(a, ["q", "blk.1.ffn_*"]) == [
        "blk.0.attn_q.weight",
        "blk.1.attn_q.weight",
        "blk.1.ffn_gate.weight",
        "blk.1.ffn_up.weight",
        "blk.1.ffn_down.weight",
    ]
    assert len(select_targets(a, ["auto"])) == 14


def test_aliases_stand_for_the_matrix_that_holds_their_rows(random_model):
    joined = describe(GgufFile(random_model("phi3", layers=1)))
    assert select_targets(joined, ["q", "v", "ffn_gate"]) == [
        "blk.0.attn_qkv.weight",
        "blk.0.ffn_up.weight",
    ]
    mixture = describe(GgufFile(random_model("qwen3moe", layers=1)))
    assert select_targets(mixture, ["ffn_up", "k"]) == [
        "blk.0.attn_k.weight",
        "blk.0.ffn_up_exps.weight",
    ]
    assert "blk.0.ffn_gate_inp.weight" not in select_targets(mixture, ["auto"])


def test_a_target_that_matches_nothing_lists_the_candidates(random_llama):
    a = describe(GgufFile(random_llama()))
    with pytest.raises(ConfigError, match=r"'attn_qkv' matches no matrix .* q, k, v, o, ffn_up"):
        select_targets(a, ["q", "attn_qkv"])
