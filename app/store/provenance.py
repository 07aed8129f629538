"""Where a run comes from: versions, command, commit, and which model exactly."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.store.models import Run
from app.store.urls import HIDDEN, hide_secrets

MODEL = "base model"
MODEL_FILE = "base model's file"
_PACKAGES = ("retrograd", "torch", "llama-cpp-python")
_GIT_SECONDS = 5
_OPTION = re.compile(
    r"^-{1,2}[\w.-]*(?:token(?!iz)|secret|passw|api[_-]?key|credential|auth)", re.I
)
# What common services give out as keys; none of these begins an ordinary argument.
_KEY = re.compile(r"\b(?:sk|pk|rk|hf|ghp|gho|github_pat|glpat|xox[abp])[-_][A-Za-z0-9_-]{12,}")


def provenance(folder: Path, argv: Sequence[str] = sys.argv) -> dict[str, str]:
    """What can be known at once; ``folder`` is the configuration's."""
    known = {name: _version(name) for name in _PACKAGES}
    known |= {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} on {platform.machine()}",
        "command": command(argv),
    }
    if commit := _commit(folder):
        known["git commit"] = commit
    return known


def command(argv: Sequence[str]) -> str:
    """The command line, without what looks like a secret."""
    shown = []
    hide = False
    for argument in argv:
        name, equals, _ = argument.partition("=")
        secret = bool(_OPTION.match(name))
        if hide and not argument.startswith("-"):
            shown.append(HIDDEN)
        elif secret and equals:
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(_KEY.sub(HIDDEN, hide_secrets(argument)))
        hide = secret and not equals
    return " ".join(_quoted(argument) for argument in shown)


def model_file(path: Path) -> str:
    """The file's size and time, by which it is known again. Raises OSError."""
    state = path.stat()
    when = datetime.fromtimestamp(state.st_mtime_ns / 1e9, UTC)
    return f"{path.resolve()}: {state.st_size} bytes of {when:%Y-%m-%d %H:%M:%S.%f} UTC"


def known_digest(session: Session, described: str) -> str | None:
    """The SHA-256 that an earlier run has found for the same file."""
    column = Run.provenance
    found = session.scalars(
        select(column[MODEL].as_string())
        .where(column[MODEL_FILE].as_string() == described, column[MODEL].as_string() != "")
        .limit(1)
    ).first()
    return found or None


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _commit(folder: Path) -> str:
    """The commit that the folder is at, and whether its files differ; empty outside of git."""
    try:
        head = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ".")
    except (OSError, subprocess.SubprocessError):
        return ""
    return head + (" and changes to it" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=_GIT_SECONDS,
    )
    return done.stdout.strip()


def _quoted(argument: str) -> str:
    return f"'{argument}'" if re.search(r"\s", argument) or not argument else argument
