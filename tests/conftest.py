"""Models that the tests share: SmolLM2, the bundled tiny model, and random ones of any shape."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from trainer.llama.quantize import WideKind

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(Path(__file__).parent))

from random_models import ARCHITECTURES, RandomModel, write_random_model  # noqa: E402

LONG = ("e2e", "docs", "app")
"""Folders whose files take long: begun last, one of them would keep one process while the other has
nothing to do."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those of a browser in turn with others, so that seldom two browsers are at work."""
    files: dict[str, list[Path]] = {folder: [] for folder in (*LONG, "")}
    for path in dict.fromkeys(item.path for item in items):
        folder = path.relative_to(ROOT / "tests").parts[0]
        files[folder if folder in LONG else ""].append(path)
    browsers, *others = files.values()
    pairs = zip_longest(browsers, chain(*others))
    places = {path: place for place, path in enumerate(chain(*pairs)) if path is not None}
    items.sort(key=lambda item: places[item.path])


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout's top folder."""
    return ROOT


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct Q4_1, fetched into ``models/`` the first time."""
    from app.fetch import fetch_model

    return fetch_model("smollm2-135m", ROOT / "models")


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """Gemma 3 270M Q4_K_M, a base model, fetched into ``models/`` the first time."""
    from app.fetch import fetch_model

    return fetch_model("gemma3-270m", ROOT / "models")


@pytest.fixture(scope="session")
def smollm2_copy(smollm2: Path) -> Callable[[WideKind], Path]:
    """SmolLM2 with ``f16`` or ``f32`` weights, as a run would find it in the cache."""
    return lambda kind: _wide_copy(smollm2, kind)


@pytest.fixture(scope="session")
def gemma3_copy(gemma3: Path) -> Callable[[WideKind], Path]:
    """The same of Gemma 3 270M."""
    return lambda kind: _wide_copy(gemma3, kind)


def _wide_copy(model: Path, kind: WideKind) -> Path:
    from trainer.gguf.file import GgufFile
    from trainer.rollout.copies import cache_folder, dequantised_copy

    digest = GgufFile(model).digest()
    return dequantised_copy(model, kind, cache_folder(), digest=digest, threads=2)


@pytest.fixture(scope="session")
def tiny() -> Path:
    return ROOT / "examples" / "tiny" / "tiny.gguf"


@pytest.fixture(scope="session")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Write a random-weight model of an architecture; keyword arguments are those of `RandomModel`,
    in place of what `ARCHITECTURES` says."""

    def make(architecture: str, **options: Any) -> Path:
        folder = tmp_path_factory.mktemp(f"random-{architecture}")
        given = ARCHITECTURES.get(architecture, {}) | {"architecture": architecture} | options
        return write_random_model(folder / "model.gguf", RandomModel(**given))

    return make


@pytest.fixture(scope="session")
def random_llama(random_model: Callable[..., Path]) -> Callable[..., Path]:
    """The same of a llama, unless another name is among the arguments."""

    def make(architecture: str = "llama", **options: Any) -> Path:
        return random_model(architecture, **options)

    return make


@pytest.fixture(scope="session")
def random_adapter(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Write an adapter of every query and down matrix that moves the logits by whole nats."""

    import numpy as np

    from trainer.gguf.adapter import write_adapter
    from trainer.gguf.file import GgufFile

    def make(base: Path, *, seed: int = 0, rank: int = 4) -> Path:
        rng = np.random.default_rng(seed)
        factors = {}
        for name, info in GgufFile(base).tensors.items():
            if name.endswith(("attn_q.weight", "ffn_down.weight")):
                rows, columns = info.shape
                factors[f"{name}.lora_a"] = rng.standard_normal((rank, columns), np.float32)
                factors[f"{name}.lora_b"] = rng.standard_normal((rows, rank), np.float32) * 0.02
        path = tmp_path_factory.mktemp("adapter") / f"adapter-{seed}.gguf"
        write_adapter(path, factors, architecture="llama", alpha=2.0 * rank, dtype="f32")
        return path

    return make


@pytest.fixture(scope="session", autouse=True)
def _own_store(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the runs of tests out of the user's store."""
    os.environ["RETROGRAD_STORE"] = str(tmp_path_factory.mktemp("store") / "store.db")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep copies of models out of the user's cache; a folder given from outside is kept."""
    os.environ.setdefault("RETROGRAD_CACHE", str(tmp_path_factory.mktemp("cache")))
