"""Renders chat templates in a process of its own; `trainer.chat.template` starts it.

A template comes out of a downloaded model file. Jinja's sandbox keeps it from Python's internals,
and nothing inside an interpreter bounds what it may compute: one multiplication fills the memory,
one power never ends. So the operating system sets the bounds here, on processor time and on
address space, and a template that goes over them takes nothing with it but this process.

One JSON object a line is read from standard input, and one is written for each. A request holds
``source``, ``variables`` (for the template, without the messages), ``conversations`` (a list of
lists of messages), ``generation`` (for each of them, whether the generation prompt is added),
``seconds`` and ``characters``; the answer holds ``texts``, one for each
conversation, ``reads``, the variables that the template looks up, ``sets``, those that it sets
without asking whether they are given, and ``dated``, whether it asked for the date; or ``error``
with the template's own words.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class GenerationTag(Extension):
    """``{% generation %}`` marks the assistant's words for other trainers; its body is rendered."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def refuse(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def clock(asked: list[str]) -> Callable[[str], str]:
    """``strftime_now`` for one rendering; the layouts that it was asked for go into ``asked``."""

    def strftime_now(layout: str) -> str:
        asked.append(layout)
        return datetime.now().strftime(layout)

    return strftime_now


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter writes HTML entities, which no model was trained on.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


@cache
def environment() -> jinja2.Environment:
    """The settings that chat templates are written for: those of Hugging Face's renderer."""
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[GenerationTag, "jinja2.ext.loopcontrols"],
    )
    made.filters["tojson"] = to_json
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = clock([])
    return made


@cache
def compiled(source: str) -> jinja2.Template:
    return environment().from_string(source)


@cache
def reads(source: str) -> list[str]:
    """The variables that a template looks up and does not always set itself before."""
    return sorted(meta.find_undeclared_variables(environment().parse(source)))


@cache
def sets(source: str) -> list[str]:
    """The variables of its own: it sets them, and nowhere asks whether they are defined."""
    tree = environment().parse(source)
    stored = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "store"}
    stored |= {macro.name for macro in tree.find_all(nodes.Macro)}
    asked = {
        test.node.name
        for test in tree.find_all(nodes.Test)
        if test.name in ("defined", "undefined") and isinstance(test.node, nodes.Name)
    }
    return sorted(stored - asked)


def render(source: str, variables: dict[str, Any], limit: int) -> str:
    pieces, length = [], 0
    for piece in compiled(source).generate(variables):
        pieces.append(piece)
        length += len(piece)
        if length > limit:
            raise jinja2.TemplateError(f"the output is longer than {limit} characters")
    return "".join(pieces)


def answer(request: dict[str, Any]) -> dict[str, object]:
    asked: list[str] = []
    try:
        compiled(request["source"])
        texts = [
            render(
                request["source"],
                {
                    **request["variables"],
                    "strftime_now": clock(asked),
                    "messages": messages,
                    "add_generation_prompt": generation,
                },
                request["characters"],
            )
            for messages, generation in zip(
                request["conversations"], request["generation"], strict=True
            )
        ]
        source = request["source"]
        about = {"reads": reads(source), "sets": sets(source), "dated": bool(asked)}
        return {"texts": texts, **about}
    except jinja2.TemplateSyntaxError as error:
        return {"error": f"{error.message} (line {error.lineno} of the template)"}
    except MemoryError:
        return {"error": "it needs more memory than a template may have", "limit": True}
    except jinja2.TemplateError as error:
        return {"error": error.message or type(error).__name__}
    except Exception as error:  # noqa: BLE001 - a template can raise whatever Python can
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    megabytes = int(sys.argv[1])
    if sys.platform == "linux":
        # Elsewhere the address space cannot be limited; time and output still are.
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
    # The timer counts processor time. Its signal ends the process, because Python would run no
    # handler before a long operation in C is over.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])
        reply = answer(request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
