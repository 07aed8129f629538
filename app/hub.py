"""Files of the Hugging Face Hub, where the optional package for it is installed."""

from __future__ import annotations

import re
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
        from huggingface_hub.errors import HfHubHTTPError

        try:
            found = get_hf_file_metadata(hf_hub_url(self.repository, self.file))
        except (HfHubHTTPError, OSError, ValueError) as error:
            raise _unreachable(self, error) from error
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
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(hf_hub_download(wanted.repository, wanted.file, local_dir=folder))
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise _unreachable(wanted, error) from error


def _need_package() -> None:
    try:
        import huggingface_hub  # noqa: F401
    except ImportError as error:
        raise RetrogradError(
            "Files of the Hugging Face Hub need the package huggingface_hub, which is not "
            'installed here. Add it with: pip install "retrograd[hub]"'
        ) from error


def _unreachable(wanted: HubFile, error: Exception) -> RetrogradError:
    first = str(error).strip().splitlines() or [type(error).__name__]
    return RetrogradError(f"{wanted.source} could not be fetched: {first[0]}")
