"""Merged files against llama.cpp with base and adapter, and against the base's own bytes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from quantiser import QUANTISED_FTYPES, quantised_copy
from random_models import ARCHITECTURES
from small_runs import rewards, train

from trainer.errors import ModelError, RetrogradError
from trainer.gguf.architecture import describe, forced_metadata
from trainer.gguf.file import GgufFile
from trainer.gguf.inspect import inspect_file
from trainer.merge import merging
from trainer.merge.merging import merge
from trainer.merge.plan import make_plan
from trainer.rollout.answers import SamplingSettings
from trainer.rollout.engine import RolloutEngine

TEXT = np.random.default_rng(0).integers(0, 250, 60).tolist()
ROWS_OF_256 = {"width": 256, "ff_width": 256, "heads": 4, "kv_heads": 2, "head_size": 64}


def merged(base, adapter, target, kind="f32"):
    merge(make_plan(base, adapter, kind), target, lambda _: None, threads=1)
    return target


def logprobs(path, adapter=None, tokens=TEXT):
    with RolloutEngine(
        path,
        ctx=128,
        concurrency=1,
        max_prompt_tokens=64,
        group_size=1,
        settings=SamplingSettings(1.0, 1.0, 1),
        exact=True,
        threads=1,
        forced=forced_metadata(describe(GgufFile(path)), 128),
    ) as engine:
        engine.swap_adapter(adapter)
        logits = engine.logits(tokens).astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def gap(one, other):
    return float(np.abs(one - other).mean())


# -- the same function ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_a_merged_model_computes_what_base_and_adapter_do(
    name, random_model, adapter_for, tmp_path
):
    base = random_model(name)
    adapter = adapter_for(base)
    wanted = logprobs(base, adapter)
    assert gap(wanted, logprobs(base)) > 0.02
    assert gap(wanted, logprobs(merged(base, adapter, tmp_path / "m.gguf"))) <= 1e-4


@pytest.mark.parametrize("name", ["llama", "qwen3moe", "phi3", "gemma3"])
def test_in_f16_it_does_so_nearly(name, random_model, adapter_for, tmp_path):
    base = random_model(name)
    adapter = adapter_for(base)
    found = logprobs(merged(base, adapter, tmp_path / "m.gguf", "f16"))
    assert gap(logprobs(base, adapter), found) <= 5e-3


def wide(random_model, name="llama"):
    """Of rows that every block size divides."""
    shape = ROWS_OF_256 | ({"experts": (4, 2, 256)} if name == "qwen3moe" else {})
    return random_model(name, **shape)


@pytest.mark.parametrize(
    ("name", "kind", "most"),
    [
        ("llama", "bf16", 0.008),
        ("llama", "q8_0", 0.03),
        ("llama", "q6_k", 0.07),
        ("llama", "q5_k_m", 0.12),
        ("llama", "q4_k_m", 0.15),
        ("qwen3moe", "q8_0", 0.03),
        ("qwen3moe", "q4_k_m", 0.15),
    ],
)
def test_a_quantised_one_is_nearer_than_the_base_alone(
    name, kind, most, random_model, adapter_for, tmp_path
):
    base = wide(random_model, name)
    adapter = adapter_for(base)
    path = merged(base, adapter, tmp_path / "m.gguf", kind)
    assert GgufFile(path).get("general.file_type", int) == QUANTISED_FTYPES[kind.upper()]
    assert gap(logprobs(base, adapter), logprobs(path)) <= most


@pytest.mark.parametrize("kind", ["iq4_xs", "q3_k_m", "q2_k", "q4_0"])
def test_other_types_of_llama_cpps_load_too(kind, random_model, adapter_for, tmp_path):
    base = wide(random_model)
    path = merged(base, adapter_for(base), tmp_path / "m.gguf", kind)
    assert np.isfinite(logprobs(path)).all()


# -- what the file holds -------------------------------------------------------------------------


def raw(path):
    """Every tensor's type and bytes."""
    file, data = GgufFile(path), path.read_bytes()
    return {n: (t.type_name, data[t.offset : t.offset + t.size]) for n, t in file.tensors.items()}


@pytest.mark.parametrize("kind", ["Q4_K_M", "Q4_0", "F16"])
def test_with_same_every_type_stays_and_other_tensors_keep_their_bytes(
    kind, random_model, adapter_for, tmp_path
):
    base = quantised_copy(wide(random_model), QUANTISED_FTYPES[kind], tmp_path / "base.gguf")
    adapter = adapter_for(base, targets=("q", "ffn_down"))
    path = merged(base, adapter, tmp_path / "m.gguf", "same")
    before, after = raw(base), raw(path)
    assert {n: t for n, (t, _) in before.items()} == {n: t for n, (t, _) in after.items()}
    changed = {n for n, value in before.items() if after[n] != value}
    assert changed == {f"blk.{i}.{part}.weight" for i in (0, 1) for part in ("attn_q", "ffn_down")}
    told = [GgufFile(p).get("general.file_type", int) for p in (base, path)]
    assert told == [QUANTISED_FTYPES[kind]] * 2


def test_where_the_type_is_unchanged_bytes_are_too(random_llama, adapter_for, tmp_path):
    base = random_llama(rope_factors=True, biases=True)
    path = merged(base, adapter_for(base, targets=("v",)), tmp_path / "m.gguf", "f32")
    before, after = raw(base), raw(path)
    assert {n for n in before if before[n] != after[n]} == {
        "blk.0.attn_v.weight",
        "blk.1.attn_v.weight",
    }


def test_a_tied_model_stays_tied(random_model, adapter_for, tmp_path):
    base = random_model("gemma3")
    path = merged(base, adapter_for(base), tmp_path / "m.gguf", "f16")
    assert GgufFile(path).tensors.keys() == GgufFile(base).tensors.keys()
    assert "output.weight" not in GgufFile(path).tensors


def fields(path):
    return {key: field.contents() for key, field in gguf.GGUFReader(path).fields.items()}


def test_metadata_tells_the_origin_and_is_otherwise_the_bases(random_model, adapter_for, tmp_path):
    base = random_model(
        "llama",
        extra=(
            ("general.organization", "Some Lab"),
            ("general.base_model.count", 1),
            ("general.base_model.0.name", "Grandparent"),
            ("general.license", "apache-2.0"),
            ("quantize.imatrix.file", "imatrix.gguf"),
            ("quantize.imatrix.entries_count", 12),
            ("custom.list", [3, 1, 2]),
            ("custom.text", "ü \N{SNOWMAN}"),
        ),
    )
    adapter = adapter_for(base)
    before, after = fields(base), fields(merged(base, adapter, tmp_path / "m.gguf", "f16"))
    gone = before.keys() - after.keys()
    assert gone == {"quantize.imatrix.file", "quantize.imatrix.entries_count"}
    own = {k: v for k, v in after.items() if before.get(k) != v and not k.startswith("GGUF.")}
    assert own == {
        "general.type": "model",
        "general.name": "random + tuned",
        "general.file_type": 1,
        "general.quantization_version": 2,
        "general.base_model.0.name": "random",
        "general.base_model.0.organization": "Some Lab",
        "retrograd.merged.base": "model.gguf",
        "retrograd.merged.base_sha256": GgufFile(base).digest(),
        "retrograd.merged.adapter": "tuned.gguf",
        "retrograd.merged.adapter_sha256": GgufFile(adapter).digest(),
    }


def test_a_vocabulary_is_carried_over_token_by_token(tiny, adapter_for, tmp_path):
    path = merged(tiny, adapter_for(tiny), tmp_path / "m.gguf", "f16")
    assert GgufFile(path).tokens == GgufFile(tiny).tokens
    before, after = fields(tiny), fields(path)
    same = [key for key in before if key.startswith(("tokenizer.", "llama."))]
    assert [key for key in same if before[key] != after[key]] == []


# -- what it is good for -------------------------------------------------------------------------


def test_a_merged_model_is_inspected_and_trained_like_any_other(
    random_llama, adapter_for, tmp_path
):
    base = random_llama()
    path = merged(base, adapter_for(base), tmp_path / "m.gguf", "f16")
    assert inspect_file(path).supported
    recorder = train(tmp_path / "run", path, rewards([0.0, 1.0, 0.5, 2.0]))
    assert recorder.outcome.status == "completed"
    again = merged(path, tmp_path / "run" / "adapter.gguf", tmp_path / "again.gguf", "f16")
    assert GgufFile(again).text("general.name") == "random + tuned + adapter"
    assert GgufFile(again).text("retrograd.merged.base") == "m.gguf"


# -- whole or not at all -------------------------------------------------------------------------


def folder_after(tmp_path, base, adapter, error, **how):
    target = tmp_path / "out" / "m.gguf"
    target.parent.mkdir()
    target.write_bytes(b"what was there before")
    plan = make_plan(base, adapter, "f16")
    with pytest.raises(error) as raised:
        merge(plan, target, how.pop("check", lambda _: None), threads=1, **how)
    assert [p.name for p in target.parent.iterdir()] == ["m.gguf"]
    assert target.read_bytes() == b"what was there before"
    return str(raised.value)


@pytest.mark.parametrize("stage", ["add", "write"])
def test_an_interrupt_leaves_what_was_there(random_llama, adapter_for, tmp_path, stage):
    def interrupt(now, done, total):
        if now == stage and done == 3:
            raise KeyboardInterrupt

    base = random_llama()
    folder_after(tmp_path, base, adapter_for(base), KeyboardInterrupt, told=interrupt)


def test_a_file_that_is_refused_leaves_what_was_there(random_llama, adapter_for, tmp_path):
    def refuse(_):
        raise RetrogradError("no")

    base = random_llama()
    assert folder_after(tmp_path, base, adapter_for(base), RetrogradError, check=refuse) == "no"


def test_a_quantiser_that_fails_is_quoted(random_llama, adapter_for, tmp_path, monkeypatch):
    """As by a full disk: the file that it reads is gone before it begins."""
    base = random_llama()
    adapter = adapter_for(base)
    original = merging.quantise

    def late(job, progress):
        job.source.unlink()
        return original(job, progress)

    monkeypatch.setattr(merging, "quantise", late)
    assert "llama.cpp says: " in folder_after(tmp_path, base, adapter, ModelError)


def test_a_file_that_was_cut_short_is_not_taken(random_llama, adapter_for, tmp_path, monkeypatch):
    base = random_llama()
    adapter = adapter_for(base)
    original = merging.quantise

    def cut(job, progress):
        result = original(job, progress)
        with job.target.open("r+b") as file:
            file.truncate(job.target.stat().st_size // 2)
        return result

    monkeypatch.setattr(merging, "quantise", cut)
    message = folder_after(tmp_path, base, adapter, RetrogradError)
    assert "was not written whole; the disk is full" in message


def test_a_disk_that_does_not_take_it_is_told(random_llama, adapter_for, tmp_path):
    base = random_llama()
    plan = make_plan(base, adapter_for(base), "f16")
    with pytest.raises(RetrogradError, match=r"m\.gguf: cannot be written"):
        merge(plan, tmp_path / "absent" / "m.gguf", lambda _: None, threads=1)


# -- real weights --------------------------------------------------------------------------------

PROSE = (
    "The lighthouse keeper wrote every evening into a book that nobody read. He noted the wind, "
    "the ships, and what he had eaten, and on some days a sentence about the sea."
)


def text_gap(one, other, tokens):
    """Over the tokens of a text, each by what came before it."""
    places = np.arange(len(tokens) - 1)
    return float(np.abs(one[places, tokens[1:]] - other[places, tokens[1:]]).mean())


def check_real_weights(base, copy, adapter, tmp_path, exact):
    """In F16, and in F32, against llama.cpp on the base's weights without quantisation."""
    with RolloutEngine(
        copy("f16"),
        ctx=128,
        concurrency=1,
        max_prompt_tokens=64,
        group_size=1,
        settings=SamplingSettings(1.0, 1.0, 1),
        exact=True,
        threads=1,
    ) as engine:
        start = [engine.vocabulary.bos] if engine.vocabulary.adds_bos else []
        tokens = [*start, *engine.vocabulary.tokenize(PROSE, special=False)]
    alone = logprobs(copy("f32"), None, tokens)
    wanted = logprobs(copy("f32"), adapter, tokens)
    assert text_gap(wanted, alone, tokens) > 0.1
    found = logprobs(merged(base, adapter, tmp_path / "f16.gguf", "f16"), None, tokens)
    assert text_gap(wanted, found, tokens) <= 0.005
    found = logprobs(merged(base, adapter, tmp_path / "f32.gguf", "f32"), None, tokens)
    assert text_gap(wanted, found, tokens) <= exact
    assert gap(wanted, found) <= exact
    return wanted, tokens


@pytest.mark.full
def test_smollm2_merged_equals_base_and_adapter(smollm2, smollm2_copy, adapter_for, tmp_path):
    adapter = adapter_for(smollm2, size=0.05, rank=8, alpha=16.0)
    wanted, tokens = check_real_weights(smollm2, smollm2_copy, adapter, tmp_path, exact=1e-4)
    for kind, most in (("bf16", 0.03), ("q8_0", 0.15)):
        path = merged(smollm2, adapter, tmp_path / "m.gguf", kind)
        assert text_gap(wanted, logprobs(path, None, tokens), tokens) <= most


@pytest.mark.full
def test_gemma_3_merged_equals_base_and_adapter(gemma3, gemma3_copy, adapter_for, tmp_path):
    """ggml's table of gelu has steps of F16, and a sum in another order may fall on the next."""
    adapter = adapter_for(gemma3, size=0.05, rank=8, alpha=16.0)
    check_real_weights(gemma3, gemma3_copy, adapter, tmp_path, exact=2e-3)
