"""The head of a checkpoint's file: whose it is, and what its contents have to be.

A magic word, the id of the run, and the SHA-256 of the id and of all that follows. Files of the
first version have no id. Nothing here loads torch: whoever wants to know whose a file is need not
read it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

ENDING = ".ckpt"
_FIRST, _SECOND = b"retrograd-checkpoint/1\n", b"retrograd-checkpoint/2\n"
_ID_BYTES = 32
_DIGEST_BYTES = hashlib.sha256().digest_size

UNNAMED = ""
"""Stands for the id of a run that is older than ids are."""


def head(run: str, body: memoryview) -> bytes:
    """What comes before ``body`` in the file. ``run`` is at most 32 ASCII characters."""
    name = run.encode("ascii").ljust(_ID_BYTES)
    if len(name) != _ID_BYTES:
        raise ValueError(f"the id of a run has at most {_ID_BYTES} characters: {run}")
    return _SECOND + name + _digest(name, body)


def split(content: memoryview) -> tuple[str, memoryview]:
    """The id of the run and the body of a whole file. Raises ValueError, which says what is wrong
    with it."""
    magic, rest = bytes(content[: len(_SECOND)]), content[len(_SECOND) :]
    if magic not in (_FIRST, _SECOND):
        raise ValueError("is not a checkpoint of retrograd")
    length = _ID_BYTES if magic == _SECOND else 0
    name, rest = bytes(rest[:length]), rest[length:]
    digest, body = rest[:_DIGEST_BYTES], rest[_DIGEST_BYTES:]
    if _digest(name, body) != bytes(digest):
        raise ValueError("is damaged or was cut short")
    return name.decode("ascii").strip(), body


def run_of(path: Path) -> str | None:
    """The id of the run that ``path`` is a checkpoint of, `UNNAMED` where it has none, or None
    where the file cannot be read or is none. Only its first bytes are looked at."""
    try:
        with path.open("rb") as file:
            magic, name = file.read(len(_SECOND)), file.read(_ID_BYTES)
    except OSError:
        return None
    if magic == _FIRST:
        return UNNAMED
    if magic != _SECOND or len(name) != _ID_BYTES:
        return None
    return name.decode("ascii", errors="replace").strip()


def by_age(folder: Path, run: str | None = None) -> list[Path]:
    """The checkpoints of ``folder``, newest first: all of them, or those that may be of ``run``.
    One that cannot be read may be anybody's."""
    found = []
    for path in folder.glob(f"*{ENDING}"):
        try:
            found.append((path.stat().st_mtime_ns, path.name, path))
        except OSError:  # let go in this moment
            continue
    newest_first = [path for _, _, path in sorted(found, reverse=True)]
    return [path for path in newest_first if run is None or run_of(path) in (run, None)]


def _digest(name: bytes, body: memoryview) -> bytes:
    found = hashlib.sha256(name)
    found.update(body)
    return found.digest()
