"""Verdicts that were paid for once, in a file that several runs may share."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from trainer.errors import ConfigError
from trainer.judge.questions import Reply, Verdict

_VERSION = 1


def cache_key(*parts: object) -> str:
    """A name of what was asked: the SHA-256 of ``parts`` as JSON, in their order."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class VerdictCache:
    """An append-only JSONL file of replies, each a line with its key.

    Lines that cannot be read are passed over: the last one may have been cut by a crash, or another
    process may be in the middle of it. Where a file ends without a newline, the next line begins
    with one. The file may be deleted at any time, and costs no more than the requests in it.
    """

    def __init__(self, path: Path, on_note: Callable[[str], None]) -> None:
        """Raises ConfigError when the file cannot be read or written."""
        self._path = path
        self._note = on_note
        self._replies: dict[str, Reply] = {}
        self._read_until = 0
        self._writable = True
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and not path.is_file():
                raise ConfigError(
                    f"{path}: cache_path of the judge must be a regular file: name another one"
                )
            with path.open("ab"):
                pass
            self.refresh()
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot use this as cache_path of the judge ({error.strerror}): make it "
                "readable and writable, name another file, or remove the key"
            ) from error

    def refresh(self) -> None:
        """Takes in what has been appended since, by whomever."""
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._read_until:
                    self._read_until = 0  # It was deleted or emptied, and begun anew.
                file.seek(self._read_until)
                data = file.read()
        except FileNotFoundError:
            return
        *lines, unfinished = data.split(b"\n")
        self._read_until += len(data) - len(unfinished)
        for line in lines:
            if (entry := _entry(line)) is not None:
                self._replies[entry[0]] = entry[1]

    def get(self, key: str, count: int) -> Reply | None:
        """The reply to a question about ``count`` texts."""
        reply = self._replies.get(key)
        return reply if reply is not None and len(reply) == count else None

    def put(self, key: str, reply: Reply) -> None:
        """Keeps ``reply``. A disk that is full ends the caching, not the run."""
        self._replies[key] = reply
        if not self._writable:
            return
        verdicts = [[verdict.score, verdict.explanation] for verdict in reply]
        line = json.dumps({"v": _VERSION, "key": key, "verdicts": verdicts}) + "\n"
        try:
            with self._path.open("a+b", buffering=0) as file:
                _append(file, line.encode())
        except OSError as error:
            self._writable = False
            self._note(
                f"The judge's verdicts are no longer cached: {self._path} cannot be written "
                f"({error.strerror})."
            )


def _append(file: BinaryIO, line: bytes) -> None:
    # Two processes write one after the other, and a line goes out in one piece.
    fcntl.flock(file, fcntl.LOCK_EX)
    size = file.seek(0, os.SEEK_END)
    if size:
        file.seek(size - 1)
        if file.read(1) != b"\n":
            line = b"\n" + line
    written = file.write(line)
    if written < len(line):
        raise OSError(0, "only a part of a line was written")


def _entry(line: bytes) -> tuple[str, Reply] | None:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or fields.get("v") != _VERSION:
        return None
    key, verdicts = fields.get("key"), fields.get("verdicts")
    if not isinstance(key, str) or not isinstance(verdicts, list):
        return None
    reply = _reply(verdicts)
    return None if reply is None else (key, reply)


def _reply(items: Sequence[object]) -> Reply | None:
    reply = []
    for item in items:
        match item:
            case [int() | float() as score, str() as explanation] if (
                not isinstance(score, bool) and 0 <= score <= 1
            ):
                reply.append(Verdict(float(score), explanation))
            case _:
                return None
    return tuple(reply)


def payload_key(url: str, payload: Mapping[str, object]) -> str:
    """The key of a request: where it goes and all of what is sent, which holds model, parameters,
    rubric and every text in its order."""
    return cache_key(url, payload)
