"""llama.cpp's quantiser in a process of its own, which can be ended at any time.

It runs as a program, without the rest of retrograd. The first line of standard input is the job, as
JSON; native log lines, and at the end a line of JSON, go to standard output. Standard input stays
open while somebody waits: where it ends, so does this process, and the files that were made for it
alone are removed.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import llama_cpp


def parameters(job: dict[str, Any]) -> llama_cpp.llama_model_quantize_params:
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = job["file_type"]
    params.nthread = job["threads"]
    params.allow_requantize = True
    params.dry_run = job["dry"]
    params.max_buf_size = job["buffer_bytes"]
    if job["tensor_types"]:
        # The last entry has no pattern, which ends the list.
        types = (llama_cpp.llama_model_tensor_override * (len(job["tensor_types"]) + 1))()
        for entry, (pattern, kind) in zip(types, job["tensor_types"], strict=False):
            entry.pattern, entry.type = pattern.encode(), kind
        params.tt_overrides = types
    if job["metadata"]:
        values = (llama_cpp.llama_model_kv_override * (len(job["metadata"]) + 1))()
        for value, (key, number) in zip(values, job["metadata"].items(), strict=False):
            value.tag = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_INT
            value.key = key.encode()
            value.value.val_i64 = number
        params.kv_overrides = values
    return params


def end_with_standard_input(temporary: list[str]) -> None:
    while sys.stdin.buffer.read(1):
        pass
    for path in temporary:
        Path(path).unlink(missing_ok=True)
    os._exit(1)


def main() -> None:
    job = json.loads(sys.stdin.buffer.readline())

    def tell(level: int, text: bytes | None, _data: int | None) -> None:  # noqa: ARG001
        with suppress(OSError):
            os.write(1, text or b"")

    log = llama_cpp.llama_log_callback(tell)
    llama_cpp.llama_log_set(log, ctypes.c_void_p(0))
    orphans = job["temporary"]
    threading.Thread(target=end_with_standard_input, args=[orphans], daemon=True).start()
    source, target = os.fsencode(job["source"]), os.fsencode(job["target"])
    params = parameters(job)
    status = llama_cpp.llama_model_quantize(source, target, ctypes.byref(params))
    os.write(1, b"\n" + json.dumps({"status": status}).encode() + b"\n")
    os._exit(0)


if __name__ == "__main__":
    main()
