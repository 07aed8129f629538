"""The bundled example, copied where the user can read and change it, and trained by the server."""

from __future__ import annotations

import filecmp
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from app.jobs.runs import Jobs
from app.resources import bundled
from app.terminal.summary import shown_path
from trainer.errors import ConfigError, RetrogradError

CONFIG = "smoke_tiny_grpo.toml"
_SEED = re.compile(r"(?m)^(seed\s*=\s*)\d+")
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


def enter(jobs: Jobs, demo: Demo, seed: int | None = None) -> int:
    """Put the example into the queue, as if somebody had uploaded it; the run's id. Raises
    ConfigError where the user has changed it into something that cannot run."""
    text = demo.config.read_text(encoding="utf-8")
    if seed is not None:
        text = with_seed(text, seed)
    run_id = jobs.create(text, name=CONFIG)
    reading = jobs.read(run_id)
    if not reading.can_start:
        jobs.discard(run_id)
        config = shown_path(demo.config)
        places = [config if p.line is None else f"{config}:{p.line}" for p in reading.problems]
        problems = zip(places, reading.problems, strict=True)
        raise ConfigError("\n\n".join(f"{place}: {p.message}" for place, p in problems))
    jobs.start(run_id)
    return run_id


def with_seed(text: str, seed: int) -> str:
    """The example's configuration with another seed of sampling. Raises ConfigError."""
    changed, count = _SEED.subn(rf"\g<1>{seed}", text)
    if count != 1:
        raise ConfigError(f"--seed replaces the line that sets the seed, and {CONFIG} has {count}.")
    return changed


def keep_adapter(demo: Demo, output: str) -> Path | None:
    """Copy what the run has exported beside the example's files."""
    try:
        shutil.copyfile(output, demo.adapter)
    except OSError:
        return None
    return demo.adapter


def next_steps(demo: Demo, url: str, adapter: Path | None) -> str:
    """``url`` is that of the run's page; ``adapter`` where the result was copied to."""
    config = shlex.quote(shown_path(demo.config))
    reward = shown_path(demo.folder / "smoke_rl_reward.py")
    command = shlex.quote(_command())
    output = shlex.quote(shown_path(demo.adapter))
    result = f"\nadapter: {shown_path(adapter)}\n" if adapter else ""
    uses = _uses(demo, command) if adapter else ""
    return f"""{result}
What to try next:
  read every answer        {url}/trajectories
  change what is rewarded  edit {reward}, then
                           {command} reward test {config}
  change how it learns     edit {shown_path(demo.config)}, then
                           {command} train {config} --output {output}
{uses}  train a real model       {command} fetch smollm2-135m --to models
"""


def _uses(demo: Demo, command: str) -> str:
    """What the copied adapter is good for; the example's own output lies elsewhere."""
    config, model, adapter = (
        shlex.quote(shown_path(path))
        for path in (demo.config, demo.folder / "tiny" / "tiny.gguf", demo.adapter)
    )
    return f"""  talk to both models      {command} chat {model} --adapter {adapter} --compare
  measure what it learnt   {command} bench {config} --adapter {adapter}
"""


def _command() -> str:
    """What to type for ``retrograd`` in this shell."""
    if shutil.which("retrograd"):
        return "retrograd"
    return shown_path(Path(sys.executable).with_name("retrograd"))
