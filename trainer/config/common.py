"""The sections that every algorithm has, apart from ``[training]``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo

from trainer.config.base import (
    LARGEST_SEED,
    Algorithm,
    BrokenRule,
    Checked,
    LineOfText,
    NotAllowed,
    PathValue,
    Section,
    Unset,
    texts,
)
from trainer.config.variables import TemplateVariables

DEFAULT_TARGETS = ("q", "k", "v", "o", "ffn_up", "ffn_down", "ffn_gate")
DEFAULT_OPENERS = (
    "great question",
    "excellent question",
    "what a great",
    "you're absolutely right",
    "you are absolutely right",
    "i completely agree",
    "what a wonderful",
)


def _targets(value: object, _info: ValidationInfo) -> object:
    if value == "auto":
        return value
    targets = texts(value, '["q", "v"]')
    if not targets:
        raise NotAllowed('must name at least one target, for example ["q", "v"], or be "auto"')
    if "auto" in targets:
        raise NotAllowed('must be "auto" alone, outside a list, or a list of targets without it')
    repeated = sorted({target for target in targets if targets.count(target) > 1})
    if repeated:
        raise NotAllowed(f"must name each target once; repeated: {', '.join(repeated)}")
    return targets


def _openers(value: object, _info: ValidationInfo) -> object:
    return texts(value, '["great question"]')


Targets = Annotated[
    list[str] | Literal["auto"],
    Checked(_targets, 'a list of aliases or tensor patterns, or "auto"'),
]
Openers = Annotated[list[str], Checked(_openers, "a list of texts")]


class RunSection(Section):
    """What kind of run this is."""

    algorithm: Algorithm
    """How the adapter is trained; the section of the same name holds the algorithm's own keys."""

    name: Annotated[LineOfText, Unset("the file's name without its ending")]
    """What the run is called wherever it is shown."""

    verbose: bool = False
    """Whether the log also tells what is only needed to look into a problem."""


class ModelSection(Section):
    """The model that the adapter is trained for."""

    path: PathValue
    """The base model, a GGUF file; it is only read. `--model` on the command line replaces it."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where tensors are computed: `auto` takes CUDA, else Apple's MPS, else the CPU; `gpu` refuses
    to start without one."""

    template_variables: TemplateVariables = Field(default_factory=dict)
    """Variables for the chat template that the model carries, for example `enable_thinking =
    false`: text, numbers, `true` and `false`, lists and tables of them. One that the template never
    reads is an error."""

    merge_system: bool = False
    """Where the chat template takes no system message, put it before the first user message, with
    an empty line between; `false` refuses such a conversation."""


class OutputSection(Section):
    """What the run leaves behind."""

    path: PathValue
    """The file that receives the result; its folder is created. `--output` replaces it."""

    kind: Literal["adapter", "model"] = "adapter"
    """`adapter` writes a LoRA that llama.cpp loads beside the base; `model` writes the base with
    the adapter merged in, in F16, which needs no second file, and keeps the adapter beside it, in
    a file of that name ending in `.adapter.gguf`."""

    @property
    def adapter_path(self) -> Path:
        """Where the adapter goes: the result itself, or beside the model that it is merged into."""
        if self.kind == "adapter":
            return self.path
        return self.path.with_name(f"{self.path.stem}.adapter.gguf")


class LoraSection(Section):
    """The adapter: low-rank factors added to chosen matrices of the base."""

    rank: int = Field(default=8, ge=1, le=65536)
    """Columns of each factor; memory and what can be learnt grow with it."""

    alpha: float = Field(default=16.0, ge=1e-30, le=1e30)
    """The adapter's output is multiplied by alpha / rank."""

    seed: int = Field(default=42, ge=0, le=LARGEST_SEED)
    """Draws the initial factors, and the order of the texts in SFT."""

    targets: Targets = Field(default_factory=lambda: list(DEFAULT_TARGETS))
    """The matrices that get factors: aliases (`q`, `k`, `v`, `o`, `ffn_up`, `ffn_down`,
    `ffn_gate`), tensor patterns such as `blk.*.attn_q.weight`, or `auto` for all that the model
    has. Where a model joins matrices, or has one for each expert, an alias stands for those. A
    target without a match stops the run, with the candidates listed."""

    dtype: Literal["f16", "f32"] = "f16"
    """Number format of the exported adapter; training itself is always in F32."""

    init_adapter: Annotated[PathValue | None, Unset("a new adapter")] = None
    """A LoRA GGUF whose weights the run starts from; it brings its own rank, alpha, targets and
    dtype, so those keys may not stand beside it. Nor may `seed`, except with SFT, whose texts it
    puts in order."""

    def broken_rules(self) -> Iterator[BrokenRule]:
        if self.init_adapter is None:
            return
        for key in ("rank", "alpha", "targets", "dtype"):
            if self.given(key):
                yield BrokenRule(
                    key,
                    "cannot stand beside lora.init_adapter, which already fixes it: remove one "
                    "of the two",
                )


class ReferenceSection(Section):
    """Another policy than the initial one to measure the KL divergence from."""

    model: PathValue
    """A GGUF file with the base's vocabulary; it takes the memory of a second model."""


class EvaluationSection(Section):
    """Measures the policy on prompts (texts in SFT) that are not trained on."""

    data: PathValue
    """Held-out prompts as JSONL; in SFT held-out texts, in either of its formats."""

    every_iterations: int = Field(default=1, ge=1)
    """Updates (epochs in SFT) between two evaluations; one more always closes the run."""

    max_examples: Annotated[int | None, Unset("all")] = Field(default=None, ge=1)
    """How many examples are used, taken evenly over the file; fewer is faster and noisier."""

    patience: Annotated[int | None, Unset("never stops early")] = Field(default=None, ge=1)
    """Evaluations in a row without a better result after which the run stops."""

    min_delta: float = Field(default=0.0, ge=0)
    """By how much a reward must exceed the best one so far, or a loss lie below it, to count as
    better."""


class CheckpointSection(Section):
    """What is kept to go on from after an interruption."""

    directory: Annotated[PathValue | None, Unset("the run's own folder")] = None
    """Where checkpoints are written."""

    mode: Literal["steps", "best_eval", "steps_and_best_eval"] = "steps"
    """Keep one every so many steps, the best one of the evaluations, or both; the last two need
    `[evaluation]`."""

    every_steps: int = Field(default=50, ge=1)
    """Optimizer steps between two checkpoints; each is saved where the current update ends."""

    keep: int = Field(default=3, ge=1)
    """How many of the newest step checkpoints stay on disk."""

    resume_from: Annotated[PathValue | None, Unset("a fresh start")] = None
    """A checkpoint to continue exactly, from where it stopped."""


class MetricsSection(Section):
    """Other places that receive the metrics."""

    tensorboard_dir: Annotated[PathValue | None, Unset("not written")] = None
    """A folder for TensorBoard; each run gets one of its own in it, with event files."""


class ObserveSection(Section):
    """What is kept of prompts, answers, rewards and advantages, in the store (whole, where this
    section says nothing else) and, if wanted, in a file."""

    directory: Annotated[PathValue | None, Unset("no file")] = None
    """A folder in which the records are also appended to `observe.jsonl`."""

    every: int = Field(default=1, ge=1)
    """Texts are kept for every n-th update only; the summaries of all updates are kept."""

    max_text_chars: int = Field(default=0, ge=0)
    """Characters after which a stored text is cut; 0 keeps it whole."""


class AuditSection(Section):
    """Watches each update's own answers for signs that the reward is being gamed."""

    enabled: bool = True
    """Whether answers are audited."""

    every: int = Field(default=1, ge=1)
    """Answers of updates 1, 1 + every, 1 + 2·every, … are audited."""

    max_words: int = Field(default=200, ge=1)
    """Words above which an answer counts as verbose; where a script has no spaces, letters count
    as parts of words (see health.md)."""

    verbosity_limit: float = Field(default=0.3, ge=0, le=1)
    """Share of verbose answers above which a warning is raised; 1 never raises it."""

    sycophancy_limit: float = Field(default=0.2, ge=0, le=1)
    """Share of answers with a flattering opener above which a warning is raised; 1 never raises
    it."""

    repetition_limit: float = Field(default=0.15, ge=0, le=1)
    """Share of answers that go round in circles (some four words come three times or more, and what
    comes so often makes up at least a fifth of the answer) above which a warning is raised; 1 never
    raises it."""

    openers: Openers = Field(default_factory=lambda: list(DEFAULT_OPENERS))
    """Phrases that count as flattery where an answer starts with their words, in any letter case
    and punctuation; an empty list looks for none."""
