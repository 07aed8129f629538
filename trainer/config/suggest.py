"""What a key that nobody knows was probably meant to be."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from trainer.config.base import Section
from trainer.config.models import CONFIGS
from trainer.config.schema import sections

# Names that other trainers give to the same things.
FOREIGN_NAMES: Mapping[str, str] = {
    "learning_rate": "training.lr",
    "lr_scheduler_type": "training.lr_scheduler",
    "warmup_ratio": "training.warmup_steps",
    "optim": "training.optimizer",
    "num_train_epochs": "training.epochs",
    "n_ctx": "training.ctx",
    "max_length": "training.ctx",
    "max_seq_length": "training.ctx",
    "n_threads": "training.threads",
    "grad_clip": "training.max_grad_norm",
    "lora_r": "lora.rank",
    "r": "lora.rank",
    "lora_rank": "lora.rank",
    "lora_alpha": "lora.alpha",
    "target_modules": "lora.targets",
    "model_path": "model.path",
    "output_dir": "output.path",
    "num_generations": "grpo.group_size",
    "num_iterations": "grpo.grpo_epochs",
    "epsilon": "grpo.clip_range_low",
    "epsilon_high": "grpo.clip_range_high",
    "beta": "grpo.kl_coefficient",
    "kl_coef": "grpo.kl_coefficient",
    "mask_truncated_completions": "grpo.mask_truncated",
    "max_completion_length": "grpo.sampling.max_new_tokens",
    "max_tokens": "grpo.sampling.max_new_tokens",
    "cliprange": "ppo.clip_range",
    "lam": "ppo.critic.gae_lambda",
}


def unknown_key(config: type[Section], algorithm: str, path: tuple[str, ...]) -> str:
    """The rest of the sentence about a key (or section) that ``config`` does not have."""
    known = _keys(config)
    section, key = ".".join(path[:-1]), path[-1]
    if not section and key in CONFIGS:
        return (
            f'does not belong to a run with algorithm = "{algorithm}": remove the section, or '
            "change run.algorithm"
        )
    if key in known.get(section, ()):
        return f"is not a key of this type of [{section}]: remove it, or change the type"
    kind = f"is not a key of [{section}]" if section else "is not a section or key of the file"
    return f"{kind}; {_hint(known, section, key)}"


def _keys(config: type[Section]) -> dict[str, list[str]]:
    """The keys of each section, sections below included."""
    known: dict[str, list[str]] = {}
    for info in sections(config):
        keys = known.setdefault(info.name, [])
        keys.extend(key for key in info.model.model_fields if key not in keys)
    return known


def _hint(known: Mapping[str, list[str]], section: str, key: str) -> str:
    here = known.get(section, [])
    longer = [name for name in here if name.startswith(f"{key}_")] if section else []
    if longer:
        return "did you mean " + " or ".join(_dotted(section, name, known) for name in longer) + "?"
    homes = [name for name, keys in known.items() if key in keys]
    if homes:
        elsewhere = f"{key} belongs to " + " or ".join(_section(home) for home in homes)
        if not section or not here:
            return elsewhere
        return f"{elsewhere}; {_section(section)} has {', '.join(here)}"
    foreign = {
        name: target
        for name, target in FOREIGN_NAMES.items()
        if target.rpartition(".")[2] in known.get(target.rpartition(".")[0], ())
    }
    if key in foreign:
        return f"did you mean {foreign[key]}?"
    for near in get_close_matches(key, known.get(section, []), n=1, cutoff=0.65):
        return f"did you mean {_dotted(section, near, known)}?"
    for near in get_close_matches(key, foreign, n=1, cutoff=0.75):
        return f"did you mean {foreign[near]}?"
    everywhere = {name: home for home, keys in known.items() for name in keys}
    for near in get_close_matches(key, everywhere, n=1, cutoff=0.75):
        return f"did you mean {_dotted(everywhere[near], near, known)}?"
    return f"{_section(section)} has " + ", ".join(known.get(section, []))


def _section(name: str) -> str:
    return f"[{name}]" if name else "the top of the file"


def _dotted(section: str, key: str, known: Mapping[str, list[str]]) -> str:
    dotted = f"{section}.{key}" if section else key
    return f"[{dotted}]" if dotted in known else dotted
