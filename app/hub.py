"""Files of the Hugging Face Hub, where the optional package for it is installed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainer.errors import ConfigError, RetrogradError

_SHA256 = re.compile(r"[0-9a-f]{64}")
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class HubFile:
    """``file`` is the path inside the repository ``owner/name``."""

    repository: str
    file: str

    @property
    def file_name(self) -> str:
        return self.file.rpartition("/")[2]

    @property
    def source(self) -> str:
        return f"{self.file} of the Hugging Face repository {self.repository}"

    def size_and_hash(self) -> tuple[int, str | None]:
        """What the hub says of the file: bytes, and SHA-256 where it keeps one.

        Raises ``RetrogradError`` where the hub cannot be asked or has no such file.
        """
        _need_package()
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        with _hub_errors(self):
            found = get_hf_file_metadata(hf_hub_url(self.repository, self.file))
        if found.size is None:
            raise RetrogradError(f"The hub does not say how large {self.source} is.")
        etag = found.etag or ""
        return found.size, etag if _SHA256.fullmatch(etag) else None


def parse_hub_name(name: str) -> HubFile:
    """``hf:owner/name/path/file.gguf``; ``ConfigError`` for anything else."""
    parts = name.removeprefix("hf:").split("/")
    if len(parts) < 3 or not all(_PART.fullmatch(part) for part in parts):
        raise ConfigError(
            f'"{name}" does not name a file of the Hugging Face Hub: write '
            "hf:OWNER/REPOSITORY/FILE.gguf, with folders of the repository before FILE."
        )
    if not parts[-1].endswith(".gguf"):
        raise ConfigError(f'"{name}" does not end with .gguf: retrograd reads GGUF files only.')
    return HubFile("/".join(parts[:2]), "/".join(parts[2:]))


def download(wanted: HubFile, folder: Path) -> Path:
    """The file, under ``folder``. Raises ``RetrogradError`` where it cannot be had."""
    _need_package()
    from huggingface_hub import hf_hub_download

    with _hub_errors(wanted):
        return Path(hf_hub_download(wanted.repository, wanted.file, local_dir=folder))


def _need_package() -> None:
    try:
        import huggingface_hub  # noqa: F401
    except ImportError as error:
        raise RetrogradError(
            "Files of the Hugging Face Hub need the package huggingface_hub, which is not "
            'installed here. Add it with: pip install "retrograd[hub]"'
        ) from error


@contextmanager
def _hub_errors(wanted: HubFile) -> Iterator[None]:
    """Whatever the package and the HTTP client below it raise becomes one sentence."""
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

    # Releases of the package differ in their HTTP client. What they have in common: the error for a
    # refusal by the hub derives from the client's own base class.
    client_errors = tuple(base for base in HfHubHTTPError.__bases__ if base is not OSError)
    try:
        yield
    except (HfHubHTTPError, ValueError) as error:
        raise RetrogradError(f"{wanted.source} could not be fetched: {_reason(error)}") from error
    except (*client_errors, ConnectionError, LocalEntryNotFoundError) as error:
        raise RetrogradError(
            f"{wanted.source} could not be fetched, because the hub cannot be reached "
            f"({_reason(error)}). See whether this machine is online; the environment variable "
            "HF_ENDPOINT names another hub."
        ) from error
    except (EntryNotFoundError, OSError) as error:
        raise RetrogradError(f"{wanted.source} could not be fetched: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
