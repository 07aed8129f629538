"""What two runs must have in common for one to go on where the other stopped."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

Identity = dict[str, Any]

# Where results go and what is told of the run changes no number. Nor does how work is cut, beyond
# rounding, but the promise is the same numbers: those keys have to be the same.
_FREE = (
    "run.name",
    "run.verbose",
    "output",
    "observe",
    "checkpoint",
    "metrics",
    "audit",
    "model.path",
)
_LENGTH = {"grpo": "grpo.updates", "ppo": "ppo.updates", "sft": "training.epochs"}


def identity(params: Mapping[str, Any], *, model: str, files: Mapping[str, str]) -> Identity:
    """``params`` is the resolved configuration, ``model`` the digest of the base, and ``files`` are
    those of further files that decide what is learnt, by the key that names them."""
    return {"params": dict(params), "model": model, "files": dict(files)}


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal. Raises OSError."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def differences(saved: Identity, now: Identity) -> list[str]:
    """What forbids going on, in a line each: key, value then, value now."""
    found = []
    if saved["model"] != now["model"]:
        found.append("model.path: is another model than the checkpoint was made with")
    common = saved["files"].keys() & now["files"].keys()
    for key, digest in now["files"].items():
        if key in common and saved["files"][key] != digest:
            found.append(f"{key}: the file has other contents than at the checkpoint")
    before, after = dict(_flat(saved["params"])), dict(_flat(now["params"]))
    for key in sorted(before.keys() | after.keys()):
        # What the program of then did not know was off, and is still.
        newer = key not in before and after[key] in (None, False)
        if before.get(key) != after.get(key) and not newer and not _may_differ(key, now, common):
            found.append(f"{key}: {before.get(key)!r} at the checkpoint, {after.get(key)!r} now")
    return found


def length_key(now: Identity) -> str:
    """The key that says how long the run is."""
    return _LENGTH[now["params"]["run"]["algorithm"]]


def lengthened(saved: Identity, now: Identity) -> tuple[int, int] | None:
    """What `length_key` had then and has now, where it is another."""
    key = length_key(now)
    before, after = dict(_flat(saved["params"])).get(key), dict(_flat(now["params"]))[key]
    return (before, after) if before is not None and before != after else None


def _may_differ(key: str, now: Identity, files: Collection[str]) -> bool:
    free = any(key == name or key.startswith(f"{name}.") for name in _FREE)
    # A file that was moved is the same file: its contents are compared.
    return free or key == length_key(now) or key in files


def _flat(params: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in params.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value
