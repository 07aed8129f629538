"""The small words beside an answer or a group, and what they mean."""

from __future__ import annotations

from dataclasses import dataclass

from app.store.queries.trajectories import AnswerRow, GroupLine


@dataclass(frozen=True, slots=True)
class Badge:
    """``tone`` is how it looks: quiet, warn or bad."""

    words: str
    meaning: str
    tone: str = "quiet"


TRUNCATED = Badge(
    "truncated", "It was cut at max_new_tokens, before the model ended it by itself.", "warn"
)
DUPLICATE = Badge("duplicate", "An earlier answer of the group has the same text.")
NOT_KEPT = Badge(
    "text not kept", "[observe] every leaves out the texts of this update; its numbers are kept."
)
REASONS = {
    "truncated": Badge(
        "truncated · not trained",
        "It was cut at max_new_tokens, and such answers are left out of the loss.",
        "warn",
    ),
    "zero_signal": Badge(
        "zero signal",
        "All rewards it is measured against are equal, so that there is nothing to learn from it.",
    ),
    "judge_dropped": Badge(
        "judge dropped", "The judge gave no verdict, so the answer was left out.", "warn"
    ),
    "update_skipped": Badge(
        "update skipped", "Its update did not end, so no adapter was trained on it.", "warn"
    ),
    "evaluation": Badge("held out", "The answer to a held-out prompt, which is never trained on."),
}
FLAGS = {
    "verbose": Badge("verbose", "Audit: it has more words than audit.max_words.", "warn"),
    "sycophantic": Badge("sycophantic", "Audit: it opens with flattery.", "warn"),
    "repetitive": Badge(
        "repetitive", "Audit: it goes round in circles, saying the same words again.", "warn"
    ),
}
LEGEND = (TRUNCATED, *REASONS.values(), DUPLICATE, *FLAGS.values(), NOT_KEPT)


def of_answer(answer: AnswerRow) -> tuple[Badge, ...]:
    masked = answer.truncated and answer.skip_reason == "truncated"
    badges = [TRUNCATED] if answer.truncated and not masked else []
    if answer.skip_reason is not None and not answer.trained and answer.kind != "evaluation":
        badges.append(_reason(answer.skip_reason))
    if answer.duplicate:
        badges.append(DUPLICATE)
    badges += [_flag(flag) for flag in answer.audit]
    return tuple(badges)


def of_group(group: GroupLine) -> tuple[Badge, ...]:
    """Each with how many of the group's answers it is about, unless it is all."""
    counts = [
        (_reason(reason), count)
        for reason, count in group.reasons.items()
        if reason not in ("evaluation", "truncated")
    ]
    counts += [(TRUNCATED, group.truncated)] if group.truncated else []
    counts += [(_flag(flag), count) for flag, count in group.audit.items()]
    return tuple(
        badge if count == group.size else Badge(f"{count} {badge.words}", badge.meaning, badge.tone)
        for badge, count in counts
    )


def _reason(name: str) -> Badge:
    return REASONS.get(name) or Badge(name.replace("_", " "), "It was not trained on.")


def _flag(name: str) -> Badge:
    return FLAGS.get(name) or Badge(name, "A sign that the audit found.", "warn")
