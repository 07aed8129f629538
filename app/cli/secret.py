"""A secret that is alone in a file: a token, a key."""

from __future__ import annotations

from pathlib import Path

from trainer.errors import ConfigError


def secret_in(file: Path, what: str) -> str:
    """The one line of ``file``; ``what`` names the secret in errors. Raises ConfigError."""
    try:
        secret = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"The {what} cannot be read from {file}: {why}.") from error
    if not secret or len(secret.splitlines()) > 1:
        raise ConfigError(f"{file} must hold the {what}, alone and on one line.")
    return secret
