"""The bundled example, copied where the user can read and change it, and trained there."""

from __future__ import annotations

import filecmp
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from app.resources import bundled
from app.terminal.summary import shown_path
from app.watched import Watched, run_watched
from trainer.config import Overrides, load_config, refuse_unavailable
from trainer.errors import RetrogradError

CONFIG = "smoke_tiny_grpo.toml"
_PATTERNS = (CONFIG, "smoke_rl_reward.py", "tiny/*")


@dataclass(frozen=True, slots=True)
class Demo:
    """``remarks`` are lines about what was copied."""

    folder: Path
    remarks: tuple[str, ...]

    @property
    def config(self) -> Path:
        return self.folder / CONFIG

    @property
    def adapter(self) -> Path:
        return self.folder / "adapter.gguf"


def prepare(folder: Path) -> Demo:
    """Copy the example into ``folder``. Files that the user has changed there are kept."""
    source = bundled("examples")
    remarks = [f"The example's files are in {shown_path(folder)}."]
    try:
        for file in sorted(file for pattern in _PATTERNS for file in source.glob(pattern)):
            target = folder / file.relative_to(source)
            if not file.is_file() or (target.exists() and filecmp.cmp(file, target, shallow=False)):
                continue
            if target.exists():
                remarks.append(
                    f"{shown_path(target)} was changed, and is used as it is; delete it to get "
                    "the original back."
                )
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
    except OSError as error:
        raise RetrogradError(
            f"The example could not be copied into {folder} ({error.strerror or error}). Name "
            "another folder with --to."
        ) from error
    return Demo(folder, tuple(remarks))


def run_demo(demo: Demo, seed: int | None = None) -> Watched:
    """Train the example; everything that the run writes stays in its folder."""
    from app.overrides import observed_in, with_seed

    config = load_config(demo.config, Overrides(output=demo.adapter))
    config = observed_in(config, demo.folder.absolute())
    if seed is not None:
        config = with_seed(config, seed)
    refuse_unavailable(config)
    return run_watched(config)


def next_steps(demo: Demo) -> str:
    config = shlex.quote(shown_path(demo.config))
    reward = shown_path(demo.folder / "smoke_rl_reward.py")
    command = shlex.quote(_command())
    return f"""
What to try next:
  read every answer        {shown_path(demo.folder / "observe.jsonl")}
  change what is rewarded  edit {reward}, then
                           {command} reward test {config}
  change how it learns     edit {shown_path(demo.config)}, then
                           {command} train {config}
  train a real model       {command} fetch smollm2-135m --to models
"""


def _command() -> str:
    """What to type for ``retrograd`` in this shell."""
    if shutil.which("retrograd"):
        return "retrograd"
    return shown_path(Path(sys.executable).with_name("retrograd"))
