"""Loads a reward model from a Hugging Face folder: offline, silent, and running none of its code.

The package ``transformers`` is imported here and nowhere else, and only when a model is opened: it
is an optional extra, and slow to import. It raises whatever it likes about a stranger's folder;
here each of that becomes one sentence that names the folder.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.errors import ConfigError
from trainer.reward.report import shorten

_REASON_CHARS = 300

# Names of labels that say which of two is the good one.
_GOOD = {"good", "positive", "chosen", "preferred", "accepted", "correct", "helpful", "yes", "true"}
_BAD = {"bad", "negative", "rejected", "incorrect", "wrong", "harmful", "toxic", "no", "false"}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """``labels`` are one name or two; ``unused`` names the tensors of the file that the model has
    no place for."""

    model: Any
    tokenizer: Any
    labels: tuple[str, ...]
    unused: tuple[str, ...]


def check_folder(folder: Path) -> None:
    """See what can be seen without loading. Raises ConfigError."""
    _check_files(folder)
    _need_package()


def load_folder(folder: Path) -> LoadedModel:
    """The model, in F32 on the CPU and in eval mode, with its tokenizer.

    Raises:
        ConfigError: the package is missing, or ``folder`` does not hold a sequence-classification
            model with one or two labels, its weights as safetensors.
    """
    check_folder(folder)
    with _silence():
        labels = _check_config(_load_config(folder))
        model, unused = _load_model(folder)
        tokenizer = _load_tokenizer(folder)
    _check_vocabulary(model, tokenizer)
    return LoadedModel(model.eval(), tokenizer, labels, unused)


def _need_package() -> None:
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "it needs the package transformers, which is not installed here: add it with "
            "pip install transformers"
        ) from error


def _check_files(folder: Path) -> None:
    if not folder.exists():
        raise ConfigError("there is no such folder: name that of a model on this disk")
    if not folder.is_dir():
        raise ConfigError(
            "it is not a folder: name the one that holds config.json, the weights and the tokenizer"
        )
    if (folder / "adapter_config.json").exists():
        raise ConfigError(
            "the folder holds an adapter (adapter_config.json): merge it into its base model, and "
            "save the whole model"
        )
    if not (folder / "config.json").is_file():
        raise ConfigError("the folder holds no config.json: name that of a Hugging Face model")
    if not any(folder.glob("*.safetensors")):
        pickled = sorted(
            path.name for kind in ("*.bin", "*.pt", "*.pth") for path in folder.glob(kind)
        )
        if pickled:
            raise ConfigError(
                f"the weights ({pickled[0]}) are pickled, and loading a pickle can run any code: "
                "save it again as safetensors, with save_pretrained of a current transformers"
            )
        raise ConfigError("the folder holds no weights: a file *.safetensors is needed")


def _load_config(folder: Path) -> Any:  # noqa: ANN401  transformers is untyped
    from transformers import AutoConfig

    _check_raw_config(folder / "config.json")
    with _one_sentence("config.json cannot be used"):
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _check_raw_config(file: Path) -> None:
    """Refuse what config.json says of code to run, before anything else reads it."""
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"config.json cannot be read ({error})") from error
    if not isinstance(raw, dict):
        raise ConfigError("config.json does not hold an object")
    if raw.get("auto_map"):
        raise ConfigError(
            "it needs Python code that comes with it (auto_map in config.json), which is never run:"
            " use a model of a kind that transformers itself has"
        )
    if "/" in str(raw.get("attn_implementation", "")):
        raise ConfigError(
            "config.json asks for attention code from elsewhere (attn_implementation), which is "
            "never fetched: remove that key"
        )
    if raw.get("quantization_config"):
        raise ConfigError(
            "its weights are quantised (quantization_config in config.json), and it is computed in "
            "F32: use the model that it was made from"
        )


def _check_config(config: Any) -> tuple[str, ...]:  # noqa: ANN401
    """The names of the labels, if the model is a classifier that can give a reward."""
    kinds = config.architectures or []
    if kinds and not any(kind.endswith("ForSequenceClassification") for kind in kinds):
        raise ConfigError(
            f"config.json says that it is a {kinds[0]}; a reward model is a "
            "…ForSequenceClassification, trained to score"
        )
    names = _label_names(config.id2label)
    if len(names) not in (1, 2):
        raise ConfigError(
            f"it has {len(names)} labels ({', '.join(names[:5])}{'…' * (len(names) > 5)}), and no "
            "single score can be read off them: use a model with one label or two"
        )
    _check_problem(config.problem_type, names)
    return names


def _label_names(id2label: Mapping[int, object]) -> tuple[str, ...]:
    return tuple(shorten(str(id2label[key]), 60) for key in sorted(id2label))


def _check_problem(problem: str | None, names: tuple[str, ...]) -> None:
    wrong = {
        1: {"single_label_classification": "with one class nothing can be learnt"},
        2: {
            "regression": "its two numbers have no order",
            "multi_label_classification": "its two labels do not exclude each other",
        },
    }[len(names)]
    if problem in wrong:
        raise ConfigError(
            f'it has {len(names)} label{"s" * (len(names) > 1)} with problem_type = "{problem}", '
            f"and {wrong[problem]}: use a model with one score, or with a bad and a good class"
        )
    if len(names) == 2 and (names[0].lower() in _GOOD or names[1].lower() in _BAD):
        raise ConfigError(
            f'its labels are "{names[0]}" (0) and "{names[1]}" (1), and the second must be the '
            "good one: swap the two rows of its head, and their names in config.json"
        )


def _load_model(folder: Path) -> tuple[Any, tuple[str, ...]]:
    import torch
    from transformers import AutoModelForSequenceClassification

    with _one_sentence("its weights cannot be loaded"):
        model, info = AutoModelForSequenceClassification.from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
        )
    missing = sorted(info["missing_keys"])
    if missing:
        raise ConfigError(
            f"its file lacks {len(missing)} of the model's tensors ({', '.join(missing[:3])}), "
            "which would be random numbers: use a model that was trained to score, saved whole"
        )
    return model, tuple(sorted(info["unexpected_keys"]))


def _load_tokenizer(folder: Path) -> Any:  # noqa: ANN401
    from transformers import AutoTokenizer

    with _one_sentence("its tokenizer cannot be loaded"):
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    files = sorted(set(tokenizer.vocab_files_names.values()) | {"tokenizer.json"})
    if not any((folder / file).is_file() for file in files):
        raise ConfigError(f"the folder holds no tokenizer: one of {', '.join(files)} is needed")
    return tokenizer


def _check_vocabulary(model: Any, tokenizer: Any) -> None:  # noqa: ANN401
    rows = model.get_input_embeddings().weight.shape[0]
    largest = max(tokenizer.get_vocab().values())
    if largest >= rows:
        raise ConfigError(
            f"its tokenizer counts up to {largest}, and the model knows {rows} tokens: the two do "
            "not belong together"
        )


@contextmanager
def _one_sentence(problem: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        words = shorten(" ".join(str(error).split()) or type(error).__name__, _REASON_CHARS)
        raise ConfigError(f"{problem}: {words.rstrip('.')}") from error


@contextmanager
def _silence() -> Iterator[None]:
    """Keeps transformers from the terminal, which others draw on; what it had to say is looked
    for in what it returns."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.set_verbosity(logging.CRITICAL)
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(level)
            if bars:
                logging.enable_progress_bar()
