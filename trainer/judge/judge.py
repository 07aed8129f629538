"""The judge of a run: groups of answers in, verdicts and metrics out."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean, pstdev

from trainer.chat.messages import Message, PromptLine
from trainer.config.judge import CommandJudge, RulerJudge
from trainer.errors import ConfigError
from trainer.judge.cache import VerdictCache
from trainer.judge.endpoint import EndpointSettings
from trainer.judge.layouts import Layout, lay_out, read_off
from trainer.judge.pauses import Pauses
from trainer.judge.program import JudgeProgram
from trainer.judge.prompts import RUBRICS
from trainer.judge.questions import (
    Asked,
    Asker,
    Failure,
    GroupToJudge,
    Kind,
    Listener,
    Progress,
    Question,
    ShouldStop,
    Verdict,
)
from trainer.judge.ruler import Ruler
from trainer.judge.secret import read_key
from trainer.judge.texts import cut, excerpt

NOT_ASKED = Verdict(0.0, "not asked, since no answer of the group weighs the judge")
ALL_THE_SAME = Verdict(0.5, "not asked, since all answers of the group are the same")


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the judge says of a group: a verdict for each answer, or why there is none.

    ``asked`` is false where the judge had nothing to decide.
    """

    verdicts: tuple[Verdict, ...]
    failure: Failure | None = None
    asked: bool = True


@dataclass(frozen=True, slots=True)
class Judgement:
    """The rulings on an update's groups, in their order, and the ``judge/*`` metrics."""

    rulings: Sequence[Ruling]
    metrics: Mapping[str, float]


def open_judge(
    section: RulerJudge | CommandJudge,
    *,
    folder: Path,
    seed: int,
    listener: Listener | None = None,
    on_note: Callable[[str], None] | None = None,
    environment: Mapping[str, str] = os.environ,
    pauses: Pauses | None = None,
) -> Judge:
    """The judge that ``section`` describes. Nothing is asked yet.

    A program runs in ``folder``; ``seed`` decides in which order answers are read. ``listener``
    hears of each request, ``on_note`` what is worth a line in a journal, and ``environment`` holds
    the key.

    Raises:
        ConfigError: the key or the cache's file is missing, or a request has no room for answers.
        JudgeError: there is no such program.
    """
    if isinstance(section, CommandJudge):
        program = JudgeProgram(
            section.command, folder=folder, timeout=section.timeout_secs, listener=listener
        )
        return Judge(section, program, seed)
    note = on_note or _say_nothing
    key = read_key(environment, section.api_key_env, required=section.given("api_key_env"))
    if key is None:
        note(f"No key is sent to the judge, because {section.api_key_env} is not set.")
    settings = EndpointSettings(
        base_url=section.base_url,
        key=key,
        key_variable=section.api_key_env,
        timeout=section.timeout_secs,
        max_retries=section.max_retries,
        max_concurrency=section.max_concurrency,
        pauses=pauses or Pauses(),
    )
    ruler = Ruler(
        settings,
        model=section.model,
        temperature=section.temperature,
        cache=None if section.cache_path is None else VerdictCache(section.cache_path, note),
        listener=listener,
    )
    return Judge(section, ruler, seed)


class Judge:
    """Lays groups before an asker. Between two calls nothing is open, so nothing has to be closed.

    A verdict follows from the set of a group's answers: their order in the group, and how often one
    of them occurs, changes neither the requests nor the verdicts.
    """

    def __init__(self, section: RulerJudge | CommandJudge, asker: Asker, seed: int) -> None:
        self._section = section
        self._asker = asker
        self._seed = seed
        self._require_room()

    def judge(
        self,
        groups: Sequence[GroupToJudge],
        on_progress: Progress | None = None,
        should_stop: ShouldStop | None = None,
    ) -> Judgement:
        """The verdicts on the groups of one update.

        ``on_progress`` gets (done, all) requests. Raises JudgeStopped when ``should_stop`` asks.
        """
        hearings = [self._hear(number, group) for number, group in enumerate(groups)]
        questions = [question for hearing in hearings for question in hearing.questions]
        asked = self._asker.ask(questions, on_progress, should_stop)
        replies = iter(asked.replies)
        rulings = [
            hearing.ruling or self._rule(hearing, [next(replies) for _ in hearing.questions])
            for hearing in hearings
        ]
        return Judgement(rulings, judge_metrics(rulings, asked))

    def _hear(self, number: int, group: GroupToJudge) -> _Hearing:
        """What has to be asked about a group, or the ruling where nothing has to."""
        context = self._section.context
        sent = [cut(a, context.max_message_chars, context.head_ratio) for a in group.answers]
        texts = sorted(set(sent))
        places = [texts.index(text) for text in sent]
        if not any(group.weights):
            return _Hearing.decided(NOT_ASKED, places)
        if len(texts) < 2:
            return _Hearing.decided(ALL_THE_SAME, places)
        rng = self._rng(group.prompt, texts)
        order = list(range(len(texts)))
        rng.shuffle(order)
        case = _Case(
            excerpt(group.prompt.messages, context), [texts[i] for i in order], group.prompt
        )
        layout = lay_out(
            [len(text) for text in case.texts],
            self._section.strategy,
            lambda kind, chosen: self._fits(self._question(case, kind, chosen)),
            rng,
        )
        if isinstance(layout, Failure):
            return _Hearing(places, ruling=Ruling((), layout))
        # Where a text of `texts` went in the shuffled order.
        went = {text: place for place, text in enumerate(order)}
        label = f"group {number + 1} (line {group.prompt.line} of the prompts)"
        questions = [
            self._question(
                case, layout.kind, chosen, f"{label}, request {n} of {len(layout.requests)}"
            )
            for n, chosen in enumerate(layout.requests, start=1)
        ]
        return _Hearing([went[place] for place in places], layout, questions)

    def _rule(self, hearing: _Hearing, replies: Sequence[tuple[Verdict, ...] | Failure]) -> Ruling:
        assert hearing.layout is not None, "only a group without ruling is asked about"
        count = max(hearing.places) + 1
        verdicts = read_off(hearing.layout, replies, count, self._section.strategy)
        if isinstance(verdicts, Failure):
            return Ruling((), verdicts)
        return Ruling(tuple(verdicts[place] for place in hearing.places))

    def _question(
        self, case: _Case, kind: Kind, chosen: Sequence[int], label: str = ""
    ) -> Question:
        texts = tuple(case.texts[place] for place in chosen)
        return Question(kind, case.messages, self._rubric(case.prompt, kind), texts, label)

    def _rubric(self, prompt: PromptLine | None, kind: Kind) -> str:
        """The prompt's own rubric, or the run's. One for scoring serves for pairs as well, where
        there is none for them."""
        own = None if prompt is None else prompt.rubric
        of_pairs = self._section.pairwise_rubric if kind == "pair" else None
        return own or of_pairs or self._section.rubric or RUBRICS[kind]

    def _fits(self, question: Question) -> bool:
        return self._asker.size(question) <= self._section.context.max_request_chars

    def _rng(self, prompt: PromptLine, texts: Sequence[str]) -> Random:
        canonical = json.dumps([self._seed, prompt.key, prompt.rubric, *texts])
        return Random(hashlib.sha256(canonical.encode()).digest())

    def _require_room(self) -> None:
        kind: Kind = "pair" if self._section.strategy.mode == "pairwise" else "list"
        empty = _Case((Message("user", ""),), ["", ""], None)
        size = self._asker.size(self._question(empty, kind, (0, 1)))
        limit = self._section.context.max_request_chars
        if size >= limit:
            raise ConfigError(
                f"grpo.judge.context.max_request_chars = {limit} has no room for answers: the "
                f"judge's instructions and the rubric have {size} characters; raise it"
            )


@dataclass(frozen=True, slots=True)
class _Case:
    """The different answers of a group in random order, as they are sent, with what came before."""

    messages: tuple[Message, ...]
    texts: Sequence[str]
    prompt: PromptLine | None


@dataclass(frozen=True, slots=True)
class _Hearing:
    """``places`` says for each answer of the group which of the different texts it is."""

    places: Sequence[int]
    layout: Layout | None = None
    questions: Sequence[Question] = ()
    ruling: Ruling | None = None

    @classmethod
    def decided(cls, verdict: Verdict, places: Sequence[int]) -> _Hearing:
        return cls(places, ruling=Ruling((verdict,) * len(places), asked=False))


def judge_metrics(rulings: Sequence[Ruling], asked: Asked) -> dict[str, float]:
    """The ``judge/*`` metrics of an update; one that nothing defines is left out."""
    judged = [r for r in rulings if r.asked and r.failure is None]
    scores = [[v.score for v in ruling.verdicts] for ruling in judged]
    metrics = {"judge/requests": float(len(asked.latencies))}
    if asked.latencies:
        metrics["judge/latency_seconds"] = fmean(asked.latencies)
    if asked.replies:
        metrics["judge/cache_hit_fraction"] = asked.saved / len(asked.replies)
    if rulings:
        dropped = sum(ruling.failure is not None for ruling in rulings)
        metrics["judge/dropped_group_fraction"] = dropped / len(rulings)
    if judged:
        equal = sum(max(group) == min(group) for group in scores)
        metrics["judge/degenerate_group_fraction"] = equal / len(judged)
        metrics["judge/score_mean"] = fmean(score for group in scores for score in group)
        metrics["judge/score_std"] = fmean(pstdev(group) for group in scores)
    return metrics


def _say_nothing(_: str) -> None:
    return
