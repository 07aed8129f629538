"""Files that people send: their names, and how much of them is taken."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import FormParser, MultiPartException, MultiPartParser
from starlette.requests import Request

from app.jobs.workspace import RESERVED
from app.settings import ServerSettings
from trainer.errors import RetrogradError

LONGEST_TEXT = 1 << 20
"""In bytes, of a configuration that is pasted; the loader takes no larger one."""
_LONGEST_NAME = 120
_UNSAFE = re.compile(r"[^\w.+@=,() -]")


class UploadError(RetrogradError):
    """Something that was sent is not taken; ``status`` is HTTP's."""

    exit_status = 2

    def __init__(self, message: str, status: int = 400, *, field: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.field = field
        """Of the form, where one of them is to be mended: ``toml``."""


@dataclass(frozen=True, slots=True)
class Upload:
    name: str
    content: BinaryIO


def safe_name(given: str) -> str:
    """The base name of ``given``, which may be a path of any system. Raises UploadError where it
    cannot be a file's name here."""
    name = unicodedata.normalize("NFC", given.replace("\\", "/").rsplit("/", 1)[-1]).strip()
    if not name or len(name.encode()) > _LONGEST_NAME:
        raise UploadError(
            f"{given[:80]!r}: a file needs a name of 1 to {_LONGEST_NAME} bytes; rename it."
        )
    if found := _UNSAFE.search(name):
        raise UploadError(
            f"{name!r}: the character {found.group()!r} cannot be in a file's name here; rename it "
            "with letters, digits and . _ - + @ = , ( )."
        )
    if name.startswith((".", "-")):
        raise UploadError(f"{name!r}: a file's name cannot begin with {name[0]!r}; rename it.")
    if name.casefold() in RESERVED:  # some file systems do not tell cases apart
        raise UploadError(f"{name!r}: the server has a file of that name itself; rename it.")
    return name


def checked_uploads(files: Iterable[UploadFile]) -> list[Upload]:
    """Raises UploadError for a name that is not taken, or that comes twice."""
    uploads: dict[str, Upload] = {}
    for file in files:
        if not file.filename:
            continue  # a field in which no file was chosen
        name = safe_name(file.filename)
        if name.casefold() in uploads:
            raise UploadError(f"{name}: two of the files have this name; rename one of them.")
        uploads[name.casefold()] = Upload(name, file.file)
    return list(uploads.values())


def too_long(found: int | None = None, name: str = "") -> UploadError:
    """What is said of a configuration of more than `LONGEST_TEXT` bytes; ``name`` is that of its
    file, where it came as one."""
    what = name or "The pasted configuration"
    has = "is larger" if found is None else f"has {found:,} bytes, which is more"
    return UploadError(
        f"{what} {has} than the {LONGEST_TEXT:,} bytes (1 MiB) that a configuration may have. Put "
        "what makes it so long, such as prompts or texts, into files of their own, and name them "
        "in it.",
        413,
        field="" if name else "toml",
    )


async def read_form(request: Request, settings: ServerSettings) -> FormData:
    """The fields and files of a form, of which no more than the server's limit arrives here. Raises
    UploadError where it cannot be read, or brings too many files."""
    if "_form" in request.__dict__ and request._form is not None:  # somebody has read it already
        return request._form
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind == "multipart/form-data":
            return await MultiPartParser(
                request.headers,
                request.stream(),
                max_files=settings.max_upload_files,
                max_fields=32,
                # A little more arrives, so that it can be said on the page, which keeps it.
                max_part_size=2 * LONGEST_TEXT,
            ).parse()
        return await FormParser(request.headers, request.stream()).parse()
    except MultiPartException as error:
        if "exceeded" in error.message:
            raise too_long() from error
        status = 413 if "Too many files" in error.message else 400
        raise UploadError(
            f"The form could not be read: {error.message} This server takes "
            f"{settings.max_upload_files} files and a configuration of {LONGEST_TEXT >> 20} MiB at "
            "once.",
            status,
        ) from error
