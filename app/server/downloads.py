"""Files that leave the server: always saved, never shown."""

from __future__ import annotations

import re
from urllib.parse import quote

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,150}")


def attachment(name: str, fallback: str) -> dict[str, str]:
    """The headers of a download called ``name``, which may come from anywhere; ``fallback`` is an
    ASCII name for readers that know no other."""
    if _PLAIN.fullmatch(name):
        disposition = f'attachment; filename="{name}"'
    else:
        shown = name.replace("/", "_").encode("utf-8", "replace")
        disposition = f"attachment; filename=\"{fallback}\"; filename*=utf-8''{quote(shown, '')}"
    return {
        "content-disposition": disposition,
        "x-content-type-options": "nosniff",
        # Should a browser show it all the same, then as a page that may do nothing.
        "content-security-policy": "default-src 'none'; sandbox",
        # A browser that goes on with a broken download needs to have kept its beginning.
        "cache-control": "private, no-cache",
    }
