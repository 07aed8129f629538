"""llama.cpp's shared library: started once per process, its log kept instead of printed."""

from __future__ import annotations

import ctypes
from collections import deque
from functools import cache

import llama_cpp

from trainer.errors import ModelError

BINDING_VERSION = "0.3.36"

_WARNING = 3
_ERROR = 4
_CONTINUATION = 5
_KEPT_LINES = 200


class NativeLog:
    """The last warnings and errors of llama.cpp and ggml, in a buffer of fixed size.

    Every piece of native output ends here, so that the terminal belongs to retrograd alone. Lines
    below a warning are dropped: loading a model writes hundreds of them.
    """

    def __init__(self) -> None:
        self._lines: deque[tuple[int, str]] = deque(maxlen=_KEPT_LINES)
        self._partial = ""
        self._level = 0
        self._count = 0
        # The library stores a bare function pointer: the wrapper has to outlive every call.
        self.callback = llama_cpp.llama_log_callback(self._receive)

    def _receive(self, level: int, text: bytes | None, _user_data: int | None) -> None:
        if level != _CONTINUATION:
            self._level = level
            self._partial = ""
        if self._level not in (_WARNING, _ERROR):
            return
        *whole, self._partial = (self._partial + (text or b"").decode("utf-8", "replace")).split(
            "\n"
        )
        for line in whole:
            if line.strip():
                self._count += 1
                self._lines.append((self._count, line.strip()))

    def mark(self) -> int:
        """A place in the log; give it to `since` to read only what came later."""
        return self._count

    def since(self, mark: int, *, last: int = 3) -> list[str]:
        """The warnings and errors after ``mark``, oldest first, at most ``last`` of them."""
        return [line for number, line in self._lines if number > mark][-last:]

    def quote(self, mark: int) -> str:
        """What llama.cpp said after ``mark``, as the end of an error message."""
        lines = self.since(mark)
        if not lines:
            return "llama.cpp gave no reason"
        return "llama.cpp says: " + " / ".join(lines)


def check_binding(found: str) -> None:
    """Refuse any release of llama-cpp-python but the one whose structures are used here.

    The C structures are laid out by hand in the binding and change between releases without a
    version in the library, so a mismatch would be silent: an option that is swallowed, an adapter
    that is accepted and never applied.

    Raises:
        ModelError: ``found`` is another release.
    """
    if found != BINDING_VERSION:
        raise ModelError(
            f"llama-cpp-python {found} is installed, and this release of retrograd works with "
            f"{BINDING_VERSION} only: install llama-cpp-python=={BINDING_VERSION}"
        )


def gpu_available() -> bool:
    """Whether the installed llama.cpp was built for a GPU and finds one."""
    return bool(llama_cpp.llama_supports_gpu_offload())


@cache
def start_native() -> NativeLog:
    """Start llama.cpp on the first call and return the process's native log on every call.

    Raises:
        ModelError: the installed binding is not the supported release.
    """
    check_binding(llama_cpp.__version__)
    log = NativeLog()
    llama_cpp.llama_log_set(log.callback, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    return log
