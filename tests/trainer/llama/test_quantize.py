from __future__ import annotations

import numpy as np
import pytest
from quantiser import QUANTISED_FTYPES, quantised_copy

from trainer.errors import ModelError
from trainer.gguf.file import GgufFile
from trainer.llama.quantize import WIDE_TYPES, widen


@pytest.fixture(scope="module")
def base(random_llama, tmp_path_factory):
    target = tmp_path_factory.mktemp("base") / "q8.gguf"
    return quantised_copy(random_llama(), QUANTISED_FTYPES["Q8_0"], target)


@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_matrices_get_the_type_and_vectors_stay(base, tmp_path, kind):
    target = tmp_path / "wide.gguf"
    widen(base, target, kind, threads=1)
    made, original = GgufFile(target), GgufFile(base)
    for name, info in made.tensors.items():
        wide = WIDE_TYPES[kind].tensor_type
        assert info.kind == (wide if len(info.shape) > 1 else original.tensors[name].kind)
        if len(info.shape) > 1:
            assert info.size == info.count * WIDE_TYPES[kind].weight_bytes
        np.testing.assert_allclose(made.read(name), original.read(name), rtol=1e-3, atol=1e-6)


def test_what_llama_cpp_cannot_read_is_named_with_its_reason(random_llama, tmp_path):
    base = random_llama(architecture="unheard-of")
    with pytest.raises(ModelError, match=r"model\.gguf: .*cannot copy this model; .*unheard-of"):
        widen(base, tmp_path / "wide.gguf", "f16", threads=1)
