from __future__ import annotations

import pytest

from trainer.gguf.architecture import describe
from trainer.gguf.file import GgufFile
from trainer.gguf.words import in_words

YARN = (
    ("rope.scaling.type", "yarn"),
    ("rope.scaling.factor", 4.0),
    ("rope.scaling.original_context_length", 400),
)


def test_a_llama_in_words(random_model):
    assert in_words(describe(GgufFile(random_model("llama")))) == {
        "attention": "8 heads of 8 on 2 of keys and values",
        "rotary": "base 10000, neighbours (2j, 2j + 1)",
        "norms": "before attention and feed-forward",
        "feed-forward": "96 wide, gated by silu",
        "output matrix": "of its own",
    }


@pytest.mark.parametrize(
    ("name", "title", "words"),
    [
        ("qwen3", "norms", "; of queries and keys, over each head"),
        ("olmo2", "norms", "after attention and feed-forward; of queries and keys, over all heads"),
        ("gemma2", "windows", "8 tokens in 1 of 2 layers"),
        ("gemma2", "soft caps", "attention 2, logits 6"),
        ("gemma2", "scales", "embedding × 8"),
        ("gemma3", "rotary", "base 500, halves (j, j + size / 2) in 1 of 2 layers; base 10000"),
        ("gemma3", "rotary", "positions × 0.25 in 1 of 2 layers"),
        ("phi3", "rotary", "6 of 8 numbers, amplitude 1.2"),
        ("phi3", "attention", "queries, keys and values by one matrix"),
        ("phi3", "feed-forward", "gate and up by one matrix"),
        ("smollm3", "rotary", "neighbours (2j, 2j + 1) in 3 of 4 layers"),
        ("granite", "scales", "attention × 0.3, embedding × 6, residuals × 0.4, logits × 0.25"),
        ("granite", "output matrix", "the embedding"),
        ("qwen2", "rotary", "positions × 0.25 by YaRN beyond 400, amplitude 1.139"),
        ("qwen3moe", "feed-forward", "2 of 6 experts, 32 wide, gated by silu"),
    ],
)
def test_what_others_have(random_model, name, title, words):
    own = {"own": YARN} if "YaRN" in words else {}
    assert words in in_words(describe(GgufFile(random_model(name, **own))))[title]
