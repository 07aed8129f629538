"""What an operator decides about a server."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class ServerSettings(BaseSettings):
    """Taken from the command line, and from variables ``RETROGRAD_<NAME>`` where that is silent."""

    model_config = SettingsConfigDict(env_prefix="RETROGRAD_", extra="ignore")

    store: str | None = None
    """SQLAlchemy URL or path of the store; the one in the user's data folder by default."""
    host: str = "127.0.0.1"
    port: int = Field(8765, ge=0, le=65535)
    """0 takes a free one."""
    workspace: Path = Path()
    """Files that a configuration names and that were not uploaded are looked for here."""
    data_folder: Path | None = None
    """Where the folders of the browser's runs are made; beside the store by default."""
    max_concurrent_runs: int = Field(1, ge=1)
    token: SecretStr | None = None
    """Needed to log in; without one only loopback is served."""
    allow_command: tuple[str, ...] = ()
    """With a token: programs that an uploaded configuration may run."""
    trust_uploads: bool = False
    """With a token: uploaded configurations may run anything."""
    allowed_hosts: tuple[str, ...] = ()
    """Names that the server may be called by, beside its own address."""
    max_upload_bytes: int = Field(64 * 2**20, ge=1)
    max_upload_files: int = Field(32, ge=1)


def too_large(upload_bytes: int) -> str:
    """What is said of files that are more than ``upload_bytes`` together."""
    return (
        f"The files have more than {upload_bytes / 2**20:.3g} MiB together, which is this server's "
        "limit. Put large ones into the workspace folder and name them by their path from there, "
        "or start the server with a larger --max-upload-mib."
    )
