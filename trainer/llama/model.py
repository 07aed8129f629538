"""A GGUF model opened by llama.cpp.

What owns native memory here and in `trainer.llama.context` is closed explicitly (``close`` or
``with``): the order in which contexts, adapters and models are freed matters, and a garbage
collector does not keep it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import llama_cpp

from trainer.closing import Closing
from trainer.errors import ModelError
from trainer.llama.native import gpu_available, start_native


class LlamaModel(Closing):
    """The weights and the vocabulary of one GGUF file.

    ``pointer`` and ``vocab`` are handles for the functions of ``llama_cpp``; they are valid until
    `close`.
    """

    def __init__(self, path: Path, pointer: int, *, on_gpu: bool = False) -> None:
        self.path = path
        self.on_gpu = on_gpu
        self.pointer: int | None = pointer
        self.vocab: int = llama_cpp.llama_model_get_vocab(pointer)
        self.n_vocab: int = llama_cpp.llama_vocab_n_tokens(self.vocab)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        use_gpu: bool = False,
        vocab_only: bool = False,
        forced: Mapping[str, int] | None = None,
    ) -> Self:
        """Open ``path``; with ``vocab_only`` no weight is read and no context can be made. What
        ``forced`` says takes the place of the file's metadata.

        Raises:
            ModelError: there is no such file, llama.cpp refuses it, or a GPU is asked of a
                build without one.
        """
        log = start_native()
        if not path.is_file():
            raise ModelError(f"{path}: there is no such model file")
        if use_gpu and not gpu_available():
            raise ModelError(
                f"{path}: a GPU is asked for, and the installed llama-cpp-python was built without "
                'GPU support: set device = "cpu", or rebuild it for your GPU'
            )
        mark = log.mark()
        pointer = _load(path, forced or {}, use_gpu=use_gpu, vocab_only=vocab_only)
        if pointer is None:
            raise ModelError(f"{path}: llama.cpp cannot load this file; {log.quote(mark)}")
        return cls(path, pointer, on_gpu=use_gpu)

    def metadata(self, key: str) -> str | None:
        """The value of a metadata key as llama.cpp prints it, or None where the file lacks it."""
        size = 256
        while True:
            buffer = ctypes.create_string_buffer(size)
            needed = llama_cpp.llama_model_meta_val_str(
                self.pointer, key.encode(), ctypes.cast(buffer, ctypes.c_char_p), size
            )
            if needed < 0:
                return None
            if needed < size:
                return buffer.value.decode("utf-8", "replace")
            size = int(needed) + 1

    def load_adapter(self, path: Path) -> int:
        """Load a LoRA adapter in GGUF and return its handle; free it with `free_adapter`.

        Raises:
            ModelError: llama.cpp refuses the file for this model.
        """
        log = start_native()
        mark = log.mark()
        loaded = llama_cpp.llama_adapter_lora_init(self.pointer, bytes(path))
        adapter = ctypes.cast(loaded, ctypes.c_void_p).value
        if adapter is None:
            raise ModelError(
                f"{path}: llama.cpp cannot load this adapter for {self.path}; {log.quote(mark)}"
            )
        return adapter

    @staticmethod
    def free_adapter(adapter: int) -> None:
        llama_cpp.llama_adapter_lora_free(adapter_handle(adapter))

    def close(self) -> None:
        if self.pointer is not None:
            llama_cpp.llama_model_free(self.pointer)
            self.pointer = None


def adapter_handle(address: int) -> llama_cpp.llama_adapter_lora_p_ctypes:
    """An adapter's handle as llama.cpp's functions take it."""
    return ctypes.cast(address, llama_cpp.llama_adapter_lora_p_ctypes)


def _load(path: Path, forced: Mapping[str, int], *, use_gpu: bool, vocab_only: bool) -> int | None:
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = vocab_only
    if forced:
        # The last entry has an empty key, which ends the list.
        overrides = (llama_cpp.llama_model_kv_override * (len(forced) + 1))()
        for entry, (key, value) in zip(overrides, forced.items(), strict=False):
            entry.tag = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_INT
            entry.key = key.encode()
            entry.value.val_i64 = value
        params.kv_overrides = overrides
    no_devices = (ctypes.c_void_p * 1)(None)
    if not use_gpu:
        # An empty device list as well as no layer: a GPU build would otherwise still move large
        # products to the device.
        params.n_gpu_layers = 0
        params.devices = ctypes.cast(no_devices, ctypes.c_void_p)
    pointer: int | None = llama_cpp.llama_model_load_from_file(bytes(path), params)
    return pointer
