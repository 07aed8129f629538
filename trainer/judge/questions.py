"""What goes to a judge, what comes back, and what follows from it for a group of answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from trainer.chat.messages import Message, PromptLine
from trainer.errors import RetrogradError

Kind = Literal["list", "pair"]
Progress = Callable[[int, int], None]
ShouldStop = Callable[[], bool]


class JudgeError(RetrogradError):
    """The judge failed, and training without its verdicts is not what was asked for."""


class JudgeStopped(Exception):  # noqa: N818  a wish that was granted, not a failure
    """``should_stop`` returned true, and the requests under way were dropped."""


@dataclass(frozen=True, slots=True)
class GroupToJudge:
    """The answers to one prompt. ``weights`` are what each one's verdict will be multiplied by."""

    prompt: PromptLine
    answers: Sequence[str]
    weights: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.answers) != len(self.weights):
            raise ValueError(f"{len(self.answers)} answers have {len(self.weights)} weights")


@dataclass(frozen=True, slots=True)
class Verdict:
    """How good an answer is beside the others of its group, from 0 to 1, and why."""

    score: float
    explanation: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no verdict; the reason is a clause without its full stop."""

    reason: str


@dataclass(frozen=True, slots=True)
class Question:
    """One request: a few answers to one prompt, in the order in which the judge reads them.

    Every text is as it is sent, so long ones are cut. ``label`` names the request to people.
    """

    kind: Kind
    messages: tuple[Message, ...]
    rubric: str
    texts: tuple[str, ...]
    label: str

    @property
    def ids(self) -> tuple[str, ...]:
        """A, B, C and so on: what the judge calls the texts."""
        return tuple(_letters(place) for place in range(len(self.texts)))


Reply = tuple[Verdict, ...]
"""The verdicts on a question's texts, in their order. Of two texts, the better one has the higher
score."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request as it was sent, and what came of it: for people who want to see both."""

    label: str
    sent: str
    received: str | None
    problem: str | None
    seconds: float
    cached: bool = False


Listener = Callable[[Exchange], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of a list of questions: a reply or a failure for each, and what it took."""

    replies: Sequence[Reply | Failure]
    latencies: Sequence[float]
    """Seconds of each request that was made, those that failed and were repeated too."""

    saved: int
    """How many questions needed no request of their own."""


class Asker(Protocol):
    """Whoever answers questions: a language model behind an endpoint, or a program."""

    def size(self, question: Question) -> int:
        """How many characters the request for ``question`` has."""
        ...

    def ask(
        self,
        questions: Sequence[Question],
        on_progress: Progress | None = None,
        should_stop: ShouldStop | None = None,
    ) -> Asked:
        """Ask all of them. Raises JudgeStopped."""
        ...


def _letters(place: int) -> str:
    """A to Z, then AA, AB and so on, as spreadsheets count their columns."""
    letters = ""
    place += 1
    while place:
        place, rest = divmod(place - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters
