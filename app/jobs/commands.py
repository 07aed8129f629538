"""Which programs an uploaded configuration may start.

On a server of one's own machine: any, as in a terminal. On a server with a token, a configuration
is a stranger's until the operator says otherwise, and starting a program is running code.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from app.jobs.keys import commands, shown_command, value_at
from app.jobs.workspace import Found
from app.settings import ServerSettings

DATA_ENDINGS = frozenset({".toml", ".jsonl", ".txt", ".text", ".md", ".csv", ".gguf"})
"""What may be uploaded where programs may not: no interpreter takes these for code that lies beside
a program."""
_OPEN = "start the server with --trust-uploads to allow it"


@dataclass(frozen=True, slots=True)
class Trust:
    """``allowed`` are commands, or beginnings of commands, as the operator wrote them."""

    everything: bool
    allowed: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def of(cls, settings: ServerSettings) -> Trust:
        return cls(
            settings.token is None or settings.trust_uploads,
            tuple(
                tuple(words) for entry in settings.allow_command if (words := shlex.split(entry))
            ),
        )

    def refused_upload(self, name: str) -> str:
        """Why a file of this ``name`` is not taken, or nothing."""
        if self.everything or PurePath(name).suffix.lower() in DATA_ENDINGS:
            return ""
        return (
            f"{name}: this server takes data ({', '.join(sorted(DATA_ENDINGS))}) and no programs, "
            f"because a file beside a program can become a part of it; {_OPEN}."
        )

    def refusals(self, raw: Mapping[str, Any], found: Sequence[Found]) -> dict[str, str]:
        """Dotted keys of ``raw`` that this server does not act on, with the reason."""
        if self.everything:
            return {}
        refused = {}
        for key, words in commands(raw).items():
            files = {f.named.word: f for f in found if f.named.key == key}
            if why := self._refused_command(words, files):
                refused[key] = why
        if value_at(raw, "grpo.judge.type") == "ruler":
            refused["grpo.judge"] = (
                "sends a key of the server's environment to an address that the configuration "
                f"names, which this server does not do for uploads; {_OPEN}"
            )
        return refused

    def _refused_command(self, words: Sequence[str], files: Mapping[int | None, Found]) -> str:
        begun = [a for a in self.allowed if tuple(words[: len(a)]) == a]
        if any(_is_safe(a, words, files) for a in begun):
            return ""
        last = max((len(a) for a in begun), default=1)
        if any(f.state == "uploaded" and f.named.word in range(last + 1) for f in files.values()):
            return (
                "runs an uploaded file, and an allowed interpreter with an uploaded file is any "
                f"code at all; {_OPEN}, or have the operator put the program in the workspace"
            )
        shown = shown_command(list(words))
        if not begun:
            allowed = ", ".join(shown_command(list(a)) for a in self.allowed) or "none"
            return (
                f"would run {shown}, which the operator has not allowed (allowed: {allowed}); "
                f"to allow it, start the server with --allow-command {shlex.quote(shown)}, or with "
                "--trust-uploads for every program"
            )
        return (
            f"gives {begun[0][-1]} something else to run than a program of the workspace: only a "
            "file of the workspace may follow an allowed program. Allow the whole command with "
            f"--allow-command {shlex.quote(shown)}, or {_OPEN}"
        )


def _is_safe(
    allowed: tuple[str, ...], words: Sequence[str], files: Mapping[int | None, Found]
) -> bool:
    """Whether nothing in ``words`` chooses other code than the operator's: after a bare program,
    which may be an interpreter, and after an option comes code, and so only a file of the
    workspace; after the operator's own program come its arguments."""
    after = len(allowed)
    if any(f.state == "uploaded" and f.named.word in range(after) for f in files.values()):
        return False
    if len(words) == after or (after > 1 and not allowed[-1].startswith("-")):
        return True
    following = files.get(after)
    return following is not None and following.state in ("copied", "kept", "referred")
