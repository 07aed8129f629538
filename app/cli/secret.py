"""A secret that is alone in a file: a token, a key."""

from __future__ import annotations

from pathlib import Path

from trainer.errors import ConfigError

_MOST_BYTES = 4096


def secret_in(file: Path, what: str) -> str:
    """The one line of ``file``; ``what`` names the secret in errors. Raises ConfigError."""
    try:
        with file.open("rb") as stream:  # what has no end, such as a device, is not read to it
            secret = stream.read(_MOST_BYTES + 1).decode("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"The {what} cannot be read from {file}: {why}.") from error
    if not secret or len(secret.splitlines()) > 1 or len(secret) > _MOST_BYTES:
        raise ConfigError(f"{file} must hold the {what}, alone and on one line.")
    if not (secret.isascii() and secret.isprintable()):
        raise ConfigError(
            f"The {what} in {file} holds what a header of HTTP cannot carry: take letters, digits "
            "and signs of ASCII."
        )
    return secret
