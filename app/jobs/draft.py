"""A run that is being prepared: its folder, with the configuration and the files beside it, and
what can be said of it without training."""

from __future__ import annotations

import json
import re
import shutil
import stat
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from app.jobs.commands import Trust
from app.jobs.keys import commands, kept_inside, named_files, with_values
from app.jobs.uploads import Upload, UploadError
from app.jobs.workspace import RECORD, Found, Workspace
from app.server.settings import too_large
from trainer.config import RunConfig, load_config, refuse_unavailable
from trainer.errors import ConfigError


@dataclass(slots=True)
class Record:
    """What the folder of a run holds, kept in it as ``files.json``.

    ``config`` is the TOML file's name; ``uploads`` are the files sent with it; ``kept`` those that
    the run it was cloned from had copied. ``values`` are what stands in place of the file's own, by
    dotted key: where the files lie. ``files`` tell people the same. ``accepted`` are the SHA-256 of
    the configuration and of the uploads that may be run, by name, and ``trust`` the rule that they
    were judged by.
    """

    config: str
    uploads: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    base: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    files: list[dict[str, Any]] = field(default_factory=list)
    accepted: dict[str, str | None] = field(default_factory=dict)
    trust: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Self:
        return cls(**json.loads((folder / RECORD).read_text(encoding="utf-8")))

    def write(self, folder: Path) -> None:
        new = folder / f"{RECORD}.new"
        new.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        new.replace(folder / RECORD)


@dataclass(frozen=True, slots=True)
class Problem:
    """``line`` of the TOML file, or none where the whole is meant."""

    line: int | None
    message: str


@dataclass(frozen=True, slots=True)
class Reading:
    """A configuration as the server understands it; ``config`` is none where it has problems."""

    config: RunConfig | None
    problems: Sequence[Problem]
    found: Sequence[Found]

    @property
    def missing(self) -> list[Found]:
        return [f for f in self.found if f.state in ("missing", "refused")]

    @property
    def can_start(self) -> bool:
        return self.config is not None and not self.problems and not self.missing


def save_text(folder: Path, text: str) -> None:
    """Raises UploadError where ``text`` cannot be written as UTF-8."""
    try:
        content = text.replace("\r\n", "\n").encode()
    except UnicodeEncodeError as error:
        raise UploadError("The configuration holds characters that are no text.") from error
    (folder / Record.read(folder).config).write_bytes(content)


def add_uploads(folder: Path, uploads: Iterable[Upload], trust: Trust, limits: Limits) -> None:
    """Put ``uploads`` into ``folder``; one of the same name as before takes its place. Raises
    UploadError, with nothing taken, for a program where none may be uploaded and for too many."""
    record = Record.read(folder)
    uploads = list(uploads)
    for upload in uploads:
        if why := trust.refused_upload(upload.name):
            raise UploadError(why)
    others = [n for n in record.uploads if n not in {u.name for u in uploads}]
    if len(others) + len(uploads) > limits.files:
        raise UploadError(f"A run takes {limits.files} files at most.", 413)
    taken = sum((folder / name).stat().st_size for name in others if (folder / name).is_file())
    if taken + sum(size_of(upload) for upload in uploads) > limits.bytes:
        raise UploadError(too_large(limits.bytes), 413)
    for upload in uploads:
        new = folder / f"{upload.name}.new"
        with new.open("wb") as target:
            shutil.copyfileobj(upload.content, target)
        new.replace(folder / upload.name)
    record.uploads = others + [u.name for u in uploads if u.name != record.config]
    record.write(folder)


@dataclass(frozen=True, slots=True)
class Limits:
    bytes: int
    files: int


def size_of(upload: Upload) -> int:
    upload.content.seek(0, 2)
    size = upload.content.tell()
    upload.content.seek(0)
    return size


def read_draft(folder: Path, workspace: Workspace, trust: Trust) -> Reading:
    """Look at the configuration in ``folder`` and at the files that it names. Nothing is written,
    nothing is run."""
    record = Record.read(folder)
    path = folder / record.config
    try:
        config = load_config(path)
        refuse_unavailable(config)
    except ConfigError as error:
        return Reading(None, list(_problems(str(error), path)), [])
    raw = tomllib.loads(_text(path))
    found = find_files(raw, folder, workspace, record)
    problems = [
        Problem(_line(config, key), f"{key} {why}.")
        for key, why in trust.refusals(raw, found).items()
    ]
    for f in found:
        if f.state in ("missing", "refused"):
            is_it = "is " if f.state == "refused" else "was "
            message = f"{f.named.key} names {f.named.written}, which {is_it}{f.why}."
            problems.append(Problem(_line(config, f.named.key), message))
    return Reading(config, sorted(problems, key=lambda p: p.line or 0), found)


def find_files(
    raw: Mapping[str, Any], folder: Path, workspace: Workspace, record: Record
) -> list[Found]:
    own = replace(workspace, base=record.base)
    found = [own.find(n, folder, record.uploads, record.kept) for n in named_files(raw)]
    return [_as_copied(f, folder, record) if f.state == "missing" else f for f in found]


def _as_copied(found: Found, folder: Path, record: Record) -> Found:
    """A file that is gone from the workspace since the run has a copy of it is not missing."""
    named = found.named
    for told in record.files:
        if (told["key"], told["written"], told["state"]) == (named.key, named.written, "copied"):
            copy = folder / told["name"]
            if copy.is_file():
                return Found(named, "copied", copy, size=copy.stat().st_size)
    return found


def settle(folder: Path, reading: Reading) -> None:
    """Copy what has to be copied, and write down where everything is: from here on the run in
    ``folder`` can start. Raises UploadError."""
    record = Record.read(folder)
    for f in reading.found:
        if f.state == "copied" and f.source is not None and f.path is not None:
            _copy(f.source, f.path)
        elif f.state == "uploaded" and f.named.word == 0 and f.path is not None:
            f.path.chmod(f.path.stat().st_mode | stat.S_IXUSR)
    raw = tomllib.loads(_text(folder / record.config)) if reading.config is not None else {}
    record.values = _values(raw, reading.found, folder)
    record.files = [_told(f, folder) for f in reading.found if f.state != "word"]
    record.write(folder)


def _copy(source: Path, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    except OSError as error:
        why = error.strerror or error
        raise UploadError(f"{source} cannot be copied into the run's folder: {why}.") from error


def placed_config(folder: Path) -> RunConfig:
    """The configuration of the run in ``folder``, with its files where they were found and all that
    it writes inside. Raises ConfigError."""
    record = Record.read(folder)
    config = load_config(folder / record.config)
    values = {k: Path(v) if isinstance(v, str) else v for k, v in record.values.items()}
    return kept_inside(with_values(config, values), folder)


def copied_names(folder: Path) -> list[str]:
    """Files in ``folder`` that came from the workspace, by their path from it."""
    record = Record.read(folder)
    return sorted({*record.kept, *(f["name"] for f in record.files if f["state"] == "copied")})


def _values(raw: Mapping[str, Any], found: Sequence[Found], folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for f in found:
        if f.path is None:
            continue
        if f.named.word is None:
            values[f.named.key] = str(f.path)
            continue
        words = values.setdefault(f.named.key, commands(raw)[f.named.key])
        inside = f.path.is_relative_to(folder)
        name = str(f.path.relative_to(folder)) if inside else str(f.path)
        # A program is looked for in PATH where its name has no slash.
        words[f.named.word] = f"./{name}" if f.named.word == 0 and inside else name
    return values


def _told(f: Found, folder: Path) -> dict[str, Any]:
    inside = f.path is not None and f.path.is_relative_to(folder)
    name = str(f.path.relative_to(folder)) if f.path is not None and inside else str(f.path or "")
    return {
        "key": f.named.key,
        "written": f.named.written,
        "word": f.named.word,
        "state": f.state,
        "name": name,
        "source": str(f.source or ""),
        "size": f.size,
        "why": f.why,
    }


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")


def _line(config: RunConfig, key: str) -> int | None:
    found = re.search(r":(\d+)$", config.where(key))
    return int(found[1]) if found else None


def _problems(message: str, path: Path) -> Iterable[Problem]:
    """The paragraphs of the loader's message, taken apart."""
    start = re.compile(rf"{re.escape(str(path))}(?::(\d+))?(?::\s|\s)")
    for paragraph in message.split("\n\n"):
        place = start.match(paragraph)
        words = paragraph[place.end() :] if place else paragraph
        words = words.replace(str(path), path.name).replace(f"{path.parent}/", "")
        yield Problem(int(place[1]) if place and place[1] else None, words)
