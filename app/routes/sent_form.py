"""What the forms of new runs bring: a configuration, files, and the run that it is cloned from."""

from __future__ import annotations

from starlette.datastructures import FormData, UploadFile

from app.jobs.runs import PASTED
from app.jobs.uploads import LONGEST_TEXT, Upload, UploadError, checked_uploads, too_long


def clone_of(form: FormData) -> int | None:
    clone = str(form.get("clone") or "")
    return int(clone) if clone.isdecimal() and len(clone) < 16 else None


def sent(form: FormData) -> tuple[str, str, list[Upload]]:
    """The configuration, its file's name, and the other files. A TOML file goes before the text of
    the field. Raises UploadError."""
    files = [value for value in form.getlist("files") if isinstance(value, UploadFile)]
    uploads = checked_uploads(files)
    configs = [upload for upload in uploads if upload.name.lower().endswith(".toml")]
    if len(configs) > 1:
        names = ", ".join(upload.name for upload in configs)
        raise UploadError(f"A run has one configuration, and these are {len(configs)}: {names}.")
    if not configs:
        text = str(form.get("toml") or "")
        if not text.strip():
            raise UploadError("There is no configuration: paste it, or choose its TOML file.")
        # A browser sends each end of a line as two characters, and it is kept as one.
        if (found := len(text.replace("\r\n", "\n").encode())) > LONGEST_TEXT:
            raise too_long(found)
        return text, PASTED, uploads
    (config,) = configs
    content = config.content.read(LONGEST_TEXT + 1)
    if len(content) > LONGEST_TEXT:
        raise too_long(name=config.name)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UploadError(f"{config.name} is not UTF-8 text.") from error
    return text, config.name, [upload for upload in uploads if upload is not config]
