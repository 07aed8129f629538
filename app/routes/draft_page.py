"""The page of a run that is being prepared: its configuration line by line, the files that it
names, and what the checks say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.jobs import queue
from app.jobs.checks import Checks, read_checks
from app.jobs.draft import Reading, Record, placed_config
from app.jobs.runs import Jobs
from app.routes.config_values import Table, tables_of, unused
from app.server.pages import PageContext
from trainer.config import resolved_params

_STATES = {
    "uploaded": "uploaded",
    "kept": "copied from the run it was cloned from",
    "copied": "copied from the workspace",
    "referred": "read where it lies",
    "missing": "missing",
    "refused": "refused",
}


@dataclass(frozen=True, slots=True)
class Line:
    """``problems`` are what is wrong with it."""

    number: int
    text: str
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileRow:
    """A file that the configuration names. ``place`` is where it was found."""

    key: str
    written: str
    state: str
    words: str
    place: str
    size: int | None
    why: str


@dataclass(frozen=True, slots=True)
class UploadRow:
    """``used`` says whether a key names it; nobody knows before the configuration can be read."""

    name: str
    size: int
    used: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPage(PageContext):
    id: int
    text: str
    file_name: str
    lines: tuple[Line, ...]
    problems: tuple[str, ...]
    faults: int
    files: tuple[FileRow, ...]
    uploads: tuple[UploadRow, ...]
    tables: list[Table]
    unused: list[str]
    checks: Checks
    errors: int
    warnings: int
    can_start: bool
    ahead: int
    workspace: str
    max_files: int
    max_bytes: int
    programs: bool
    refused: str = ""
    refused_field: str = ""
    section: str = "new"


def draft_page(jobs: Jobs, draft_id: int) -> DraftPage:
    """Raises QueueError where there is no such draft."""
    run, reading = jobs.draft(draft_id), jobs.read(draft_id)
    folder = Path(run.folder)
    checks = read_checks(folder)
    config = placed_config(folder) if reading.config is not None else None
    params = resolved_params(config) if config else {}
    with jobs.store.read() as session:
        ahead = queue.ahead(session)
    return DraftPage(
        title=run.name,
        id=run.id,
        text=run.config_text,
        file_name=Path(run.config_path).name,
        lines=_lines(run.config_text, reading),
        problems=tuple(p.message for p in reading.problems if p.line is None),
        faults=len(reading.problems),
        files=tuple(_file(found, folder) for found in reading.found if found.state != "word"),
        uploads=_uploads(folder, reading),
        tables=tables_of(config.run.algorithm, params) if config else [],
        unused=unused(config.run.algorithm, params) if config else [],
        checks=checks,
        errors=checks.errors,
        warnings=checks.warnings,
        can_start=reading.can_start and not checks.errors,
        ahead=max(0, ahead - jobs.settings.max_concurrent_runs + 1),
        workspace=str(jobs.workspace.folder),
        max_files=jobs.settings.max_upload_files,
        max_bytes=jobs.settings.max_upload_bytes,
        programs=jobs.trust.everything,
    )


def _lines(text: str, reading: Reading) -> tuple[Line, ...]:
    problems: dict[int, list[str]] = {}
    for problem in reading.problems:
        if problem.line is not None:
            problems.setdefault(problem.line, []).append(problem.message)
    return tuple(
        Line(number, line, tuple(problems.get(number, ())))
        for number, line in enumerate(text.rstrip("\n").split("\n"), start=1)
    )


def _file(found: Any, folder: Path) -> FileRow:  # noqa: ANN401
    place = found.source or found.path
    inside = place is not None and place.is_relative_to(folder)
    return FileRow(
        key=found.named.key,
        written=found.named.written,
        state=found.state,
        words=_STATES[found.state],
        place=str(place.relative_to(folder)) if inside else str(place or ""),
        size=found.size,
        why=found.why,
    )


def _uploads(folder: Path, reading: Reading) -> tuple[UploadRow, ...]:
    known = reading.config is not None
    used = {found.path for found in reading.found if found.state == "uploaded"}
    return tuple(
        UploadRow(name, (folder / name).stat().st_size, folder / name in used if known else None)
        for name in Record.read(folder).uploads
        if (folder / name).is_file()
    )
