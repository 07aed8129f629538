"""A run whose every word tries to be more than a word, and what a page may make of it.

``tell_run`` enters a run into a store in which one text stands wherever a text can come from: the
model, a judge, a file's name, a configuration. ``Structure`` reads a page as a browser would, and
holds what the words must not have changed: its elements, and the names of their attributes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.store.database import Store
from app.store.models import (
    Answer,
    Artifact,
    Event,
    Group,
    Metric,
    MetricName,
    Prompt,
    Run,
    Segment,
    Update,
)

MARK = "zqx"
TAME = f"{MARK} plain words"
HOSTILE = (
    f"{MARK}<script>alert(1)</script><img src=x onerror=alert(2)>"
    f"\"'><svg onload=alert(3)><b {MARK}=1>"
    f"</title></style></textarea></pre></script><!-- {MARK} --><![CDATA["
    "{{ 7 * 7 }}{% raw %}${7 * 7}#{7}&lt;i&gt;&#60;i&#62;"
    "[link](javascript:alert(4)) javascript:alert(5)"
    "\u202eright to left\u2066isolated\u200bzero\x1b[31mred\r\nnew line\x07\x9b"
)
"""Elements, attributes, ends of raw text, templates, links, direction and control characters."""
UPDATES = 3


@dataclass(frozen=True)
class Told:
    """Ids of the rows of a run."""

    run_id: int
    answer_id: int
    artifact_id: int


def tell_run(store: Store, folder: Path, text: str) -> Told:
    """A run of the browser in ``folder``, with ``text`` in every place, numbers that are none, and
    files whose names are the text as well."""
    folder.mkdir(parents=True)
    (folder / "worker.log").write_text(text * 3, encoding="utf-8")
    left = folder / text.replace("/", "∕").replace("\0", "")[:60]
    left.write_bytes(b"adapter")
    with store.write() as session:
        run = Run(**_run(folder, text))
        session.add(run)
        session.flush()
        segment = Segment(run_id=run.id, number=1, started_at=1e9, status="completed")
        artifact = Artifact(
            run_id=run.id, kind="checkpoint", path=str(left), size=7, sha256="0" * 64,
            created_at=left.stat().st_mtime, update=UPDATES,
        )  # fmt: skip
        gone = Artifact(
            run_id=run.id, kind=text, path=str(folder / "gone" / text), size=1, sha256=text,
            created_at=1e9,
        )  # fmt: skip
        prompt = Prompt(
            run_id=run.id, key=text, line=1, text=text,
            messages=[{"role": "system", "content": text}, {"role": text, "content": text}],
        )  # fmt: skip
        metrics = [_metric(session, name) for name in (f"reward/{text}", text, "reward/mean")]
        session.add_all([segment, artifact, gone, prompt, *metrics])
        session.flush()
        for level in ("info", "warning", "error", text):
            session.add(
                Event(
                    run_id=run.id, segment_id=segment.id, at=1e9, level=level, code=text,
                    message=text, update=1, data={text: text, "number": math.nan},
                )
            )  # fmt: skip
        for update in range(1, UPDATES + 1):
            value = None if update == 2 else float(update)
            for name in metrics:
                row = Metric(
                    run_id=run.id, segment_id=segment.id, name_id=name.id, update=update,
                    value=value,
                )  # fmt: skip
                session.add(row)
            answer = _update(session, run.id, segment.id, prompt.id, update, text)
        session.flush()
        return Told(run.id, answer.id, artifact.id)


def _run(folder: Path, text: str) -> dict[str, object]:
    return {
        "name": text, "algorithm": "grpo", "model": text, "source": "browser",
        "status": "failed", "message": text, "folder": str(folder),
        "config_path": str(folder / text), "config_text": text, "output": text,
        "params": {
            "run": {"name": text, "algorithm": "grpo"}, text: {text: text},
            "grpo": {"reward_command": ["python3", text], "group_size": 2, "clip_range_low": 0.2},
        },
        "facts": {text: text}, "provenance": {text: text, "command": text},
        "planned": UPDATES, "completed": UPDATES, "steps": UPDATES, "stage": text,
        "last_reward": 0.5, "last_evaluation": None, "seconds_per_update": 1.0,
        "sparkline": [0.1, None, 0.5], "findings": [], "audited": [text], "lost": 2,
        "created_at": 1e9, "queued_at": None, "started_at": 1e9, "ended_at": 1e9 + 60,
        "heartbeat_at": 1e9 + 60, "host": text, "pid": None, "process_started_at": None,
    }  # fmt: skip


def _metric(session: Session, name: str) -> MetricName:
    known = session.scalars(select(MetricName).where(MetricName.name == name)).one_or_none()
    return known or MetricName(name=name)


def _update(session: Session, run_id: int, segment_id: int, prompt_id: int, update: int, text: str):
    own = {"run_id": run_id, "segment_id": segment_id, "update": update}
    session.add(
        Update(
            **own, kind="train", status="trained", at=1e9 + update, steps=update,
            tokens=10 * update, answers=2, trained=2, reward_mean=0.5, reward_min=0.0,
            reward_max=1.0, rewards=[0.0, 1.0],
        )
    )  # fmt: skip
    group = Group(
        **own, kind="train", number=0, prompt_id=prompt_id, size=2, trained=2, reward_mean=0.5,
        reward_min=0.0, reward_max=1.0, spread=0.5, tokens_mean=5.0,
    )  # fmt: skip
    session.add(group)
    session.flush()
    for member in range(2):
        answer = Answer(
            **own, group_id=group.id, member=member, text=text, chars=len(text), tokens=5,
            truncated=bool(member), reward=float(member), reward_raw=float(member),
            judge_term=0.0, judge_words=text, parts={text: 1.0},
            advantage=0.5 - member, trained=not member,
            skip_reason="zero_signal" if member else None, audit=[text], duplicate=bool(member),
        )  # fmt: skip
        session.add(answer)
    session.flush()
    return answer


_ADDRESSES = (
    "href",
    "src",
    "action",
    "formaction",
    "srcdoc",
    "data",
    "poster",
    "hx-get",
    "hx-post",
)
_RUNNING = ("script", "style")


@dataclass
class Structure(HTMLParser):
    """What a page is made of: ``shapes`` are its elements with the names of their attributes,
    ``faults`` what no page of retrograd has, whatever its words are, and ``words`` its text with
    all that its attributes say."""

    page: str
    shapes: set[tuple[str, str]] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    words: str = ""
    _inside: str = ""

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.feed(self.page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag
        self.shapes.add((tag, ""))
        for name, value in attrs:
            self.shapes.add((tag, name))
            self.words += f" {value}"
            address = (value or "").strip().lower()
            if name.startswith("on") or name in ("style", "srcdoc"):
                self.faults.append(f"<{tag} {name}>")
            if name in _ADDRESSES and not address.startswith(("/", "?", "#")) and address:
                self.faults.append(f"<{tag} {name}={value!r}>")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        self.words += data
        if self._inside in _RUNNING and data.strip():
            self.faults.append(f"<{self._inside}> with text: {data.strip()[:60]!r}")

    def handle_comment(self, data: str) -> None:
        self.faults.append(f"comment: {data[:60]!r}")

    def handle_decl(self, decl: str) -> None:
        if decl.lower() != "doctype html":
            self.faults.append(f"declaration: {decl[:60]!r}")

    def unknown_decl(self, data: str) -> None:
        self.faults.append(f"declaration: {data[:60]!r}")

    def handle_pi(self, data: str) -> None:
        self.faults.append(f"instruction: {data[:60]!r}")
