"""The key of an endpoint: read from the environment, sent, and shown nowhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from trainer.errors import ConfigError

_SHORTEST_KEY = 8
"""Local servers are given any word for a key, and its letters stand in every reply."""


class ApiKey:
    """Holds a key so that printing, formatting or pickling it gives nothing away."""

    __slots__ = ("__value",)

    def __init__(self, value: str) -> None:
        self.__value = value

    def header(self) -> str:
        """The value of ``Authorization``."""
        return f"Bearer {self.__value}"

    def redact(self, text: str) -> str:
        """``text`` without the key, should a server have sent it back. A key of a few letters is
        none, and taking them out would spoil the reply."""
        return text if len(self.__value) < _SHORTEST_KEY else text.replace(self.__value, "[key]")

    def __repr__(self) -> str:
        return "ApiKey([key])"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key is not written anywhere")


def read_key(environment: Mapping[str, str], variable: str, *, required: bool) -> ApiKey | None:
    """The key in ``variable``, or None where there is none and none is ``required``.

    Raises ConfigError, also for a key that no header can hold: the error of an HTTP library would
    repeat it.
    """
    # A file that is read into a variable often leaves its newline there.
    value = environment.get(variable, "").strip()
    if not value:
        if not required:
            return None
        raise ConfigError(
            f"The environment variable {variable}, which api_key_env of the judge names, is not "
            f"set or empty: put the endpoint's key in it (export {variable}=…), or remove "
            "api_key_env where the endpoint takes no key"
        )
    if not all("!" <= character <= "~" for character in value):
        raise ConfigError(
            f"The environment variable {variable}, which api_key_env of the judge names, holds a "
            "space, a control character or a character outside ASCII, which no key has: set it anew"
        )
    return ApiKey(value)
