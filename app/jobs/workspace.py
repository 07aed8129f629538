"""Finding the files that a configuration names: among those uploaded with it, then in the folder
that the operator opened to runs, and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.jobs.keys import OUTPUT_FOLDER, Named

State = Literal["uploaded", "kept", "copied", "referred", "missing", "refused", "word"]
LOG = "worker.log"
RECORD = "files.json"
CHECK = "check.json"
CHECK_LOG = "check.log"
LOCK = "draft.lock"
_FILES_LOOKED_AT = 5000
RESERVED = frozenset({LOG, RECORD, CHECK, CHECK_LOG, LOCK, OUTPUT_FOLDER})
"""Names in a run's folder that are the server's own."""


@dataclass(frozen=True, slots=True)
class Found:
    """What became of a named file. ``path`` is where the run reads it, ``source`` where it is
    copied from; ``why`` says why it is missing or refused. A ``word`` of a command names no file.
    """

    named: Named
    state: State
    path: Path | None = None
    source: Path | None = None
    size: int | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Workspace:
    """``folder`` is what runs may read from; ``private`` are folders in it that they may not.
    ``base`` is where in it the configuration came from. ``copy_limit`` is in bytes."""

    folder: Path
    private: Sequence[Path] = ()
    base: str = ""
    copy_limit: int = 64 * 2**20

    def find(
        self, named: Named, run_folder: Path, uploads: Sequence[str], kept: Sequence[str]
    ) -> Found:
        """``uploads`` and ``kept`` name what lies in ``run_folder`` already: files that came with
        this configuration, and files of the run that it was cloned from."""
        given = Path(os.path.expanduser(named.written))  # noqa: PTH111  never raises
        if not given.is_absolute() and given.name in uploads:
            return _there(named, "uploaded", run_folder / given.name)
        for name in _normal_forms(given, self.base):
            if name in kept:
                return _there(named, "kept", run_folder / name)
        return self._look(named, given, run_folder)

    def _look(self, named: Named, given: Path, run_folder: Path) -> Found:
        top = Path(os.path.realpath(self.folder))
        refusal, refused_file, folder = "", False, ""
        for candidate in dict.fromkeys((top / self.base / given, top / given)):
            real = Path(os.path.realpath(candidate))
            if why := self._closed(real, top):
                refusal = refusal or why
                refused_file = refused_file or os.path.lexists(candidate)
            elif real.is_file():
                return self._take(named, real, top, run_folder)
            elif real.is_dir() and named.large:
                return Found(named, "referred", real)
            elif real.is_dir():
                folder = folder or str(real)
        if not named.needed and not refused_file:
            # A program may be passed any path; only where it is one of a file is it looked after.
            return Found(named, "word")
        if refusal:
            return Found(named, "refused", why=refusal)
        if folder:
            why = f"{folder} is a folder, and this key takes a file: name the file in it"
            return Found(named, "missing", why=why)
        why = f"not uploaded, and is not in the workspace folder {self.folder}: add the file, or "
        near = self._like(given, top)
        why += f'write "{near}", which is there' if near else "write its path from that folder"
        return Found(named, "missing", why=why)

    def _like(self, given: Path, top: Path) -> str:
        """The path of a file in the workspace that ends as ``given`` does, or nothing."""
        wanted = tuple(part for part in given.parts if part not in ("..", "/"))
        looked_at = 0
        for folder, below, names in os.walk(top):
            here = Path(folder)
            below[:] = sorted(name for name in below if not self._closed(here / name, top))
            looked_at += len(names)
            if wanted[-1:] and wanted[-1] in names:
                inside = (here / wanted[-1]).relative_to(top)
                if inside.parts[-len(wanted) :] == wanted:
                    return str(inside)
            if looked_at > _FILES_LOOKED_AT:
                break
        return ""

    def _take(self, named: Named, real: Path, top: Path, run_folder: Path) -> Found:
        size = real.stat().st_size
        if named.large or size > self.copy_limit:
            return Found(named, "referred", real, size=size)
        inside = real.relative_to(top)
        if inside.parts[0] in RESERVED or inside.suffix == ".toml":
            inside = Path("workspace") / inside
        return Found(named, "copied", run_folder / inside, source=real, size=size)

    def _closed(self, real: Path, top: Path) -> str:
        if not real.is_relative_to(top):
            return (
                f"outside the workspace folder {self.folder}, and runs of the browser read nothing "
                "outside it: upload the file, or start the server with another --workspace"
            )
        if any(real.is_relative_to(os.path.realpath(folder)) for folder in self.private):
            return "in the folder of the browser's runs, which other runs do not read: upload it"
        if any(part.startswith(".") for part in real.relative_to(top).parts):
            return "hidden (a name that begins with a dot), and such files are not read: upload it"
        return ""


def _there(named: Named, state: State, path: Path) -> Found:
    return Found(named, state, path, size=path.stat().st_size if path.is_file() else None)


def _normal_forms(given: Path, base: str) -> list[str]:
    """How ``given`` may be called in the folder of a run that has a copy of it."""
    if given.is_absolute():
        return []
    plain = os.path.normpath(given)
    return list(dict.fromkeys((os.path.normpath(Path(base, given)), plain)))
