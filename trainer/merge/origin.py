"""What the metadata of a merged model says about where it comes from."""

from __future__ import annotations

from collections.abc import Mapping

from trainer.gguf.file import GgufFile

MARK = "retrograd.merged."
"""What the keys begin with that only a merged model has."""
_OF_BASE = ("organization", "version", "repo_url", "url", "doi")
_IMPORTANCE = "quantize.imatrix."


def origin(base: GgufFile, adapter: GgufFile) -> Mapping[str, str | int | None]:
    """The entries that change: the model's name, what it was made from, and what was said of the
    base alone and is not true of it (which importance matrix it was quantised with)."""
    name = base.text("general.name") or base.path.stem
    changed: dict[str, str | int | None] = {
        key: None for key in base.metadata if key.startswith((_IMPORTANCE, "general.base_model."))
    }
    changed |= {"general.type": "model", "general.name": f"{name} + {adapter.path.stem}"}
    changed |= {"general.base_model.count": 1, "general.base_model.0.name": name}
    for key in _OF_BASE:
        if value := base.text(f"general.{key}"):
            changed[f"general.base_model.0.{key}"] = value
    changed |= {
        f"{MARK}base": base.path.name,
        f"{MARK}base_sha256": base.digest(),
        f"{MARK}adapter": adapter.path.name,
        f"{MARK}adapter_sha256": adapter.digest(),
    }
    return changed


def is_merged(file: GgufFile) -> bool:
    return any(key.startswith(MARK) for key in file.metadata)
