"""Every command line in README, docs and examples is one that its program would take.

All blocks of commands are read here, those too that `test_newcomer.py` executes. A line of
`retrograd` is parsed by the very command that it names; targets of make, scripts, tests, packages
and modules have to be there; the rest is given to the shell for its grammar.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib

import pytest
import typer.main
from doc_pages import ALL, COMMANDS, PAGES, ROOT, SHELL

from app.cli.main import app

BLOCKS = {block.where: block for block in ALL if block.is_shell}
FOREIGN = {
    *(".", "[", "cd", "chmod", "cp", "curl", "cut", "date", "done", "do", "du", "echo", "export"),
    *("fi", "find", "for", "git", "head", "if", "journalctl", "llama-cli", "ls", "mkdir", "rm"),
    *("sed", "set", "sleep", "sqlite3", "ssh", "sudo", "systemctl", "tail", "tar", "test", "then"),
    *("tee", "wait", "while", "exec", "pg_dump", "psql"),
}
"""Programs whose options are not looked at."""
INLINE = re.compile(r"`(retrograd [^`]+)`")
CHECKED = {"retrograd": "taken", "make": "made", "python": "ran", "python3": "ran", "pip": "got"}


def commands(text):
    """The simple commands of a script, as lists of words; what is quoted in `<<` is left out."""
    text = re.sub(r"<<'?(\w+)'?.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"'[^']*'", lambda quoted: quoted[0].replace("\n", " "), text)
    text = re.sub(r"\$[a-z]+", "1", text)  # a variable of a loop
    for line in re.sub(r"\\\n", " ", text).splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
        words.whitespace_split = True
        words.commenters = "#"
        simple, to_a_file = [], False
        for word in [*words, ";"]:
            if set(word) <= set("|&;<>()"):
                to_a_file = bool(set(word) & set("<>"))
                if simple and not to_a_file:
                    yield simple
                    simple = []
            elif to_a_file:
                to_a_file = False
            elif simple or not re.fullmatch(r"[A-Z_]+=.*", word):
                simple.append(word)


def taken(words):
    """Raises where retrograd has no such command, or it does not take these options and values."""
    words = [word.strip("[]") for word in words if word != "…"]
    command = typer.main.get_command(app)
    while hasattr(command, "commands"):
        words = words[1:]
        if not words or words[0].startswith("-"):
            return  # the group itself is spoken of
        assert words[0] in command.commands, f"there is no command {words[0]!r}"
        command = command.commands[words[0]]
    command.make_context(words[0], words[1:])


def made(words):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in words[1:]:
        name, assigned, _ = word.partition("=")
        known = rf"^{name} \?=|^#   {name} " if assigned else rf"^{name}:"
        assert re.search(known, makefile, re.MULTILINE), word


def ran(words):
    """A script that is here or that a page shows, a module, or code."""
    options = [w.strip("[]").partition("=")[0] for w in words if re.match(r"\[?--\w", w)]
    if words[1] == "-c":
        compile(words[2], "-c", "exec")
    elif words[1] == "-m":
        module = words[2].partition(".")[0]
        assert module in ("pytest", "trainer", "venv", "pip"), module
        for word in words[3:]:
            assert not word.endswith(".py") or (ROOT / word).is_file(), word
    elif words[1] != "-":
        [script] = {path for path in ROOT.glob(f"**/{words[1]}") if ".venv" not in path.parts} or [
            None
        ]
        shown = {block.subject for block in ALL if block.verb == "file"}
        assert script or words[1] in shown, words[1]
        for option in options:
            assert f'"{option}"' in script.read_text(encoding="utf-8"), option


def got(words):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert words[1] in ("install", "uninstall")
    for extra in re.findall(r"(?:retrograd|\.)\[([\w-]+)\]", " ".join(words)):
        assert extra in project["optional-dependencies"], extra
    for pin in (word for word in words if "==" in word and not word.startswith("retrograd")):
        assert pin in project["dependencies"], pin


@pytest.mark.parametrize("where", BLOCKS)
def test_a_block_of_commands_can_be_typed(where):
    block = BLOCKS[where]
    plain = re.sub(r"[…\[\]]", "", block.text)
    grammar = subprocess.run(["bash", "-n"], input=plain, capture_output=True, encoding="utf-8")
    assert grammar.returncode == 0, grammar.stderr
    lines = list(commands(block.text))
    assert lines
    for words in lines:
        check = CHECKED.get(words[0])
        assert check or words[0] in FOREIGN, f"{where}: what is {words[0]!r}?"
        if check:
            globals()[check](words)


def test_a_command_in_the_text_is_one_that_retrograd_takes():
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        for match in INLINE.finditer(text):
            try:
                taken(shlex.split(match[1].replace("\n", " ")))
            except Exception as error:  # noqa: BLE001 - typer's own have no public name
                # A command may be spoken of without what it works on.
                said = str(error)
                assert said.startswith("Missing parameter"), f"{page.name}: {match[1]}: {said}"


@pytest.mark.parametrize(
    "line",
    [
        "retrograd tran grpo.toml",
        "retrograd train grpo.toml --updates 3",
        "retrograd runs list --sort sideways",
        "retrograd inspect a.gguf b.gguf",
    ],
)
def test_what_retrograd_does_not_take_is_noticed(line):
    with pytest.raises(Exception, match=r"no command|No such option|sideways|unexpected extra"):
        taken(shlex.split(line))


def test_no_line_that_looks_like_a_command_is_left_unread():
    for block in ALL:
        if block.language not in SHELL | {"python", "toml", "json", "jinja", "csv", "ini", "nginx"}:
            assert not COMMANDS.search(block.text), block.where


def test_a_mark_is_one_that_something_reads():
    for block in ALL:
        assert block.verb in ("", "file", "runs", "tested"), block.where
        if block.verb == "runs":
            assert block.language in SHELL | {"python"}, block.where
        if block.verb == "file":
            assert re.fullmatch(r"[\w.-]+", block.subject), block.where
        if block.verb == "tested":
            test = (ROOT / block.subject).read_text(encoding="utf-8")
            assert block.page.rpartition("/")[2] in test, block.where
