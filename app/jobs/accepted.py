"""What a server has accepted of a draft, written down so that the processes which act on it load
that and nothing else."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from app.jobs.commands import Trust
from app.jobs.draft import Record
from app.jobs.keys import Named
from app.jobs.workspace import Found
from trainer.errors import ConfigError

_AGAIN = "Nothing of it was run. Start a new run with Clone config."


def accept(folder: Path, trust: Trust) -> None:
    """Note the contents of the draft in ``folder``, which ``trust`` has judged."""
    record = Record.read(folder)
    record.accepted = {name: _digest(folder / name) for name in _names(record)}
    record.trust = asdict(trust)
    record.write(folder)


def refuse_what_was_not_accepted(folder: Path, *, resumes: bool = False) -> None:
    """Raises ConfigError where the run in ``folder`` is not what a server has accepted, or does
    what the rule of that server does not allow.

    A run that goes on where everything is trusted is exempt: its owner may have mended a program.
    """
    record = Record.read(folder)
    trust = _trust(record)
    if resumes and trust.everything:
        return
    for name in _names(record):
        if record.accepted.get(name) != _digest(folder / name):
            raise ConfigError(f"{folder / name} is not what was accepted for this run. {_AGAIN}")
    if trust.everything:
        return
    raw = tomllib.loads((folder / record.config).read_bytes().decode("utf-8-sig"))
    for key, why in trust.refusals(raw, list(_found(record))).items():
        raise ConfigError(f"{folder / record.config}: {key} {why}.")


def _names(record: Record) -> list[str]:
    return [record.config, *record.uploads]


def _trust(record: Record) -> Trust:
    """The rule that was kept; where there is none, nothing is allowed."""
    told = record.trust
    allowed = tuple(tuple(words) for words in told.get("allowed", ()))
    return Trust(bool(told.get("everything")), allowed)


def _found(record: Record) -> Iterator[Found]:
    for told in record.files:
        yield Found(Named(told["key"], told["written"], told["word"]), told["state"])


def _digest(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None
