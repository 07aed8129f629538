"""A language model as the judge, behind an endpoint."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

from trainer.judge.cache import VerdictCache, payload_key
from trainer.judge.endpoint import Attempt, Endpoint, EndpointSettings
from trainer.judge.prompts import JudgePrompt, judge_prompt
from trainer.judge.questions import (
    Asked,
    Exchange,
    Failure,
    JudgeStopped,
    Listener,
    Progress,
    Question,
    Reply,
    ShouldStop,
)
from trainer.judge.replies import read_reply
from trainer.reward.protocol import well_formed

_LOOK_SECONDS = 0.05


class Ruler:
    """Asks an endpoint all questions of an update at once, so many at a time as it may.

    Nothing stays open between two calls of ``ask``.
    """

    def __init__(
        self,
        settings: EndpointSettings,
        *,
        model: str,
        temperature: float | None,
        cache: VerdictCache | None,
        listener: Listener | None,
    ) -> None:
        self._settings = settings
        self._parameters: dict[str, object] = {"model": model}
        if temperature is not None:
            self._parameters["temperature"] = temperature
        self._cache = cache
        self._listener = listener

    def size(self, question: Question) -> int:
        return len(judge_prompt(question))

    def ask(
        self,
        questions: Sequence[Question],
        on_progress: Progress | None = None,
        should_stop: ShouldStop | None = None,
    ) -> Asked:
        """The same question is asked once. Raises JudgeStopped."""
        prompts = [judge_prompt(question) for question in questions]
        keys = [payload_key(self._settings.url, self._payload(prompt)) for prompt in prompts]
        work = _Work(keys, on_progress)
        open_: dict[str, tuple[Question, JudgePrompt]] = {}
        if self._cache is not None:
            self._cache.refresh()
        for key, question, prompt in zip(keys, questions, prompts, strict=True):
            if key in open_ or key in work.found:
                continue
            reply = self._cache and self._cache.get(key, len(question.texts))
            if reply:
                self._tell_of_cached(question, prompt, reply)
                work.take(key, reply)
            else:
                open_[key] = (question, prompt)
        if open_:
            asyncio.run(self._ask_open(open_, work, should_stop))
        replies = [work.found[key] for key in keys]
        return Asked(replies, work.latencies, saved=len(keys) - len(open_))

    def _payload(self, prompt: JudgePrompt, again: bool = False) -> dict[str, object]:
        return {**self._parameters, "messages": well_formed(prompt.messages(again))}

    async def _ask_open(
        self,
        open_: Mapping[str, tuple[Question, JudgePrompt]],
        work: _Work,
        should_stop: ShouldStop | None,
    ) -> None:
        endpoint = Endpoint(self._settings)
        tasks = [
            asyncio.create_task(self._ask_one(endpoint, key, *asked, work))
            for key, asked in open_.items()
        ]
        try:
            waiting = set(tasks)
            while waiting:
                if should_stop is not None and should_stop():
                    raise JudgeStopped
                done, waiting = await asyncio.wait(
                    waiting, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_EXCEPTION
                )
                for task in done:
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await endpoint.aclose()

    async def _ask_one(
        self, endpoint: Endpoint, key: str, question: Question, prompt: JudgePrompt, work: _Work
    ) -> None:
        def heard(again: bool, attempt: Attempt) -> None:
            work.latencies.append(attempt.seconds)
            if self._listener is not None:
                problem = None if attempt.trouble is None else attempt.trouble.reason
                sent = prompt.shown(again)
                self._listener(
                    Exchange(question.label, sent, attempt.text, problem, attempt.seconds)
                )

        result = await endpoint.complete(
            lambda again: self._payload(prompt, again),
            lambda text: read_reply(text, question),
            heard,
        )
        if self._cache is not None and not isinstance(result, Failure):
            self._cache.put(key, result)
        work.take(key, result)

    def _tell_of_cached(self, question: Question, prompt: JudgePrompt, reply: Reply) -> None:
        if self._listener is not None:
            verdicts = [
                f"{name} {v.score:g} {v.explanation}"
                for name, v in zip(question.ids, reply, strict=True)
            ]
            self._listener(
                Exchange(
                    question.label, prompt.shown(), "\n".join(verdicts), None, 0.0, cached=True
                )
            )


class _Work:
    """What is known so far of the questions with these keys, some of which may be the same."""

    def __init__(self, keys: Sequence[str], on_progress: Progress | None) -> None:
        self.found: dict[str, Reply | Failure] = {}
        self.latencies: list[float] = []
        self._times = Counter(keys)
        self._done = 0
        self._on_progress = on_progress

    def take(self, key: str, result: Reply | Failure) -> None:
        self.found[key] = result
        self._done += self._times[key]
        if self._on_progress is not None:
            self._on_progress(self._done, self._times.total())
