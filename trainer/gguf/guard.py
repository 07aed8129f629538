"""What makes llama.cpp end the whole process, found before llama.cpp sees the file.

Its assertions abort, and its exceptions cannot cross the C boundary: neither leaves a message that
a caller could show.
"""

from __future__ import annotations

from collections import Counter

from trainer.errors import ModelError
from trainer.gguf.file import GgufFile

TENSOR_ALIGNMENT = 32
"""What ggml's CPU backend asserts of the address of a mapped buffer, in bytes."""
VECTOR_TYPES = ("F32",)
"""What ggml's CPU backend multiplies F32 activations with, or adds to them, element by element."""


def check_metadata(file: GgufFile, name: str) -> None:
    """Refuse values of architecture ``name`` that llama.cpp asserts on. Raises ModelError."""
    alignment = file.get("general.alignment", int, TENSOR_ALIGNMENT)
    if alignment < TENSOR_ALIGNMENT or alignment & (alignment - 1):
        raise ModelError(
            f"{file.path}: general.alignment = {alignment}; llama.cpp needs a power of two of at "
            f"least {TENSOR_ALIGNMENT}. Convert the model again."
        )
    epsilon_key = f"{name}.attention.layer_norm_rms_epsilon"
    epsilon = file.get(epsilon_key, float)
    if not epsilon > 0:
        raise ModelError(
            f"{file.path}: {epsilon_key} = {epsilon:g} must be above zero. Convert the model again."
        )
    nextn_key = f"{name}.nextn_predict_layers"
    nextn = file.get(nextn_key, int, 0)
    if nextn:
        raise ModelError(
            f"{file.path}: {nextn_key} = {nextn}; layers that predict several tokens ahead are not "
            f"supported."
        )
    _check_block_count(file, f"{name}.block_count")


def _check_block_count(file: GgufFile, key: str) -> None:
    # Before anything is made for each layer: the number may be any that 64 bits hold.
    promised = file.get(key, int)
    there = len({n.split(".", 2)[1] for n in file.tensors if n.startswith("blk.")})
    if promised > there:
        raise ModelError(
            f"{file.path}: {key} = {promised}, and tensors of {there} layers are in the file; the "
            f"file does not hold the whole model."
        )


def check_vocabulary(file: GgufFile) -> None:
    """Refuse a vocabulary that llama.cpp asserts on, or looks up bytes in without finding them.

    Raises ModelError.
    """
    # llama.cpp renames empty texts, so there may be several.
    counts = Counter(token for token in file.tokens if token)
    if len(counts) < len(file.tokens) - file.tokens.count(b""):
        token, count = counts.most_common(1)[0]
        places = [i for i, other in enumerate(file.tokens) if other == token]
        raise ModelError(
            f"{file.path}: tokenizer.ggml.tokens has {token.decode('utf-8', 'replace')!r} {count} "
            f"times (first as tokens {places[0]} and {places[1]}); each text may stand there once. "
            f"Convert the model again."
        )
    if file.text("tokenizer.ggml.model") == "llama" and file.tokens:
        _check_bytes(file, counts)


def _check_bytes(file: GgufFile, counts: Counter[bytes]) -> None:
    missing = [b for b in range(256) if b"<0x%02X>" % b not in counts and bytes([b]) not in counts]
    if missing:
        raise ModelError(
            f'{file.path}: tokenizer.ggml.model = "llama", and {len(missing)} of the 256 byte '
            f"tokens are not in tokenizer.ggml.tokens, first <0x{missing[0]:02X}>; text that needs "
            f"them could not be read. Convert the model again together with its tokenizer."
        )


def check_vectors(file: GgufFile) -> None:
    """Refuse norms, biases and rotary factors that ggml cannot compute with. Raises ModelError."""
    for tensor in file.tensors.values():
        if len(tensor.shape) == 1 and tensor.type_name not in VECTOR_TYPES:
            raise ModelError(
                f"{file.path}: tensor {tensor.name} has type {tensor.type_name}, where llama.cpp "
                f"needs {' or '.join(VECTOR_TYPES)}. Convert the model again."
            )
