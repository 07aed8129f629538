"""Where a store is, as people and programs write it, and what of that may be shown."""

from __future__ import annotations

import re
from pathlib import Path

from sqlalchemy.engine import URL, make_url

_SECRET_KEYS = ("password", "sslpassword", "passfile")
_IN_FRONT = re.compile(r"(?<=://)([^/@\s:]*):[^/@\s]+@")
_IN_QUERY = re.compile(rf"(?i)(?<=[?&])({'|'.join(_SECRET_KEYS)})=[^&\s]*")
HIDDEN = "***"


def url_of(place: str) -> URL:
    """The URL of ``place``, which is one or a path of an SQLite file. A file's path is absolute and
    without links, so that it means the same wherever a program is started. Raises ArgumentError and
    ValueError."""
    if "://" not in place:
        return URL.create("sqlite", database=str(Path(place).expanduser().resolve()))
    url = make_url(place)
    if url.get_backend_name() == "sqlite" and has_file(url):
        return url.set(database=str(Path(str(url.database)).resolve()))
    return url


def has_file(url: URL) -> bool:
    """Whether an SQLite database is in a file that its URL names as a path."""
    name = url.database or ""
    return name not in ("", ":memory:") and not name.startswith("file:")


def without_secrets(url: URL) -> str:
    """``url`` without its password, wherever it says that."""
    secret = [key for key in url.query if key.lower() in _SECRET_KEYS]
    return url.difference_update_query(secret).render_as_string(hide_password=True)


def hide_secrets(words: str) -> str:
    """``words`` with what looks like passwords in URLs replaced."""
    return _IN_QUERY.sub(rf"\1={HIDDEN}", _IN_FRONT.sub(rf"\1:{HIDDEN}@", words))
