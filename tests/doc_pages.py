"""README and docs as blocks: their language, their text, and what a mark before them says.

A mark is an HTML comment on the line before a block (an empty line may stand between):

    <!-- file: reward.py -->    the block is a file of that name of the page's folder
    <!-- runs -->               the block is executed there, by sh or by Python
    <!-- runs, long -->         the same, in the full tests alone
    <!-- tested: tests/… -->    that test takes the block out of the page and uses it

Blocks without a mark are read all the same: see `docs/test_blocks.py` and `docs/test_commands.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]

MARK = re.compile("<!-- ((?:file|runs|tested)[^>]*) -->")
SHELL = {"sh", "bash"}
COMMANDS = re.compile(
    r"^(?:[A-Z_]+=\S+ )*(?:\.|cd|chmod|cp|curl|du|export|for|git|llama-cli|make|pip|pytest|"
    r"python3?|retrograd|sed|sqlite3|ssh|sudo|systemctl|tar) [-\w./$~:\"']",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str
    mark: str
    is_fenced: bool

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_shell(self) -> bool:
        return self.language in SHELL

    @property
    def verb(self) -> str:
        return re.split("[:,]", self.mark)[0]

    @property
    def subject(self) -> str:
        """What a mark names: a file, or a test."""
        return self.mark.partition(":")[2].partition(",")[0].strip()

    @property
    def is_long(self) -> bool:
        return self.mark.endswith(", long")


def blocks_of(page: Path) -> list[Block]:
    lines = page.read_text(encoding="utf-8").splitlines()
    found, mark, at = [], "", 0
    while at < len(lines):
        line = lines[at]
        if marked := MARK.fullmatch(line):
            mark = marked[1]
        elif line.startswith("```"):
            end = lines.index("```", at + 1)
            body = lines[at + 1 : end]
            found.append(_block(page, at + 1, line[3:], body, mark, fenced=True))
            mark, at = "", end
        elif line.startswith("    ") and not lines[at - 1]:
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end]):
                end += 1
            body = [text[4:] for text in lines[at:end]]
            found.append(_block(page, at + 1, "", body, mark, fenced=False))
            mark, at = "", end - 1
        elif line:
            mark = ""
        at += 1
    return found


def _block(
    page: Path, line: int, language: str, lines: list[str], mark: str, *, fenced: bool
) -> Block:
    text = "\n".join(lines).rstrip("\n") + "\n"
    if not language and COMMANDS.search(text):
        language = "sh"
    return Block(page.relative_to(ROOT).as_posix(), line, language, text, mark, fenced)


ALL = [block for page in PAGES for block in blocks_of(page)]
