"""Rules for templates and scripts that keep a text from ever being more than a text. The strict
Content-Security-Policy would stop most breaches in a browser; these stop them before."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
SCRIPTS = sorted(path for path in (ROOT / "static" / "js").rglob("*.js"))
PYTHON = sorted((ROOT / "app").rglob("*.py"))

IN_TEMPLATES = {
    "a style of its own": r"<[^>]*\sstyle\s*=|<style",
    "a handler of its own": r"<[^>]*\s(?:on[a-z]+|hx-on[\w:-]*)\s*=",
    "a script of its own": r"<script(?![^>]*\ssrc=)|<script[^>]*>\s*[^<\s]",
    "a script's address": r"javascript:",
    "text that is not escaped": r"\|\s*safe\b|autoescape\s+false",
    "a value without quotes": r"<[^>]*\s[\w-]+\s*=\s*\{\{",
    "what htmx would evaluate": r"hx-trigger\s*=\s*\"[^\"]*\[|hx-(?:vals|headers)\s*=\s*['\"]js",
    "an address of another site": r"(?:src|href|action)\s*=\s*[\"'](?:https?:)?//",
}
IN_SCRIPTS = {
    "HTML from text": r"\.(?:inner|outer)HTML\s*\+?=(?!=)|insertAdjacentHTML|document\.write"
    r"|createContextualFragment|setHTMLUnsafe",
    "code from text": r"\beval\s*\(|new\s+Function\s*\(|set(?:Timeout|Interval)\s*\(\s*[\"'`]",
    "a handler or a style as an attribute": r"setAttribute\s*\(\s*[\"'](?:on|style|srcdoc)",
    "an address of another site": r"[\"'`](?:https?:)?//[a-z]",
}
IN_PYTHON = {"HTML from text": r"\bMarkup\s*\(|autoescape\s*=\s*False"}
STRANGERS = re.compile(
    r"\{\{ *((?:\w+\.)+(?:name|short|prefix|model|message|text|prompt|title|detail|why|written"
    r"|folder|key|place)|title|text|message|clone_name|file_name|folder)(?: or [^|}]*)? *\}\}"
)
"""Words that somebody else may have written, shown without a filter."""
PLAIN_PLACE = re.compile(r"\b(?:value|href|id|class|action|hx-get|data-metric)=\"[^\"<>]*$")
"""What is sent back as it is, or is no text of the page."""
SIGNED = re.compile(r"\bpiece\.")
"""What app/routes/reading/text.py has put its signs into."""
FORM = re.compile(r"<form\b[^>]*method=\"post\"[^>]*>(.*?)</form>", re.DOTALL | re.IGNORECASE)
HEAD = re.compile(r"<thead>(.*?)</thead>", re.DOTALL)
FIELD = re.compile(r"<(?:input|textarea|select|button)\b[^>]*>|\{\{ *csrf_field\(\) *\}\}")


def found(paths: list[Path], rules: dict[str, str]) -> list[str]:
    assert len(paths) > 5, "the files moved"
    return [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1} has {what}: "
        f"{match[0].strip()[-60:]}"
        for path in paths
        for text in [path.read_text(encoding="utf-8")]
        for what, rule in rules.items()
        for match in re.finditer(rule, text, re.IGNORECASE)
    ]


def test_templates_hold_no_style_script_or_raw_text():
    assert found(TEMPLATES, IN_TEMPLATES) == []


def test_scripts_make_no_elements_or_code_from_text():
    assert found(SCRIPTS, IN_SCRIPTS) == []


def test_no_text_is_declared_to_be_html():
    assert found(PYTHON, IN_PYTHON) == []


def test_every_form_that_changes_something_has_its_token_first():
    """Before the files of an upload, so that one without it is refused unread."""
    forms = [(path, form) for path in TEMPLATES for form in FORM.findall(path.read_text("utf-8"))]
    assert forms
    without = [
        f"{path.relative_to(ROOT)}: {first[0] if first else form.strip()[:60]}"
        for path, form in forms
        for first in [FIELD.search(form)]
        if first is None or "csrf" not in first[0]
    ]
    assert without == []


def unfiltered(text: str) -> list[str]:
    return [
        match[0]
        for match in STRANGERS.finditer(text)
        if not PLAIN_PLACE.search(text, 0, match.start()) and not SIGNED.search(match[0])
    ]


def test_every_word_of_a_stranger_shows_its_control_and_direction_characters():
    """By the filter `visible`, or as the pieces of a text that is read: a name may otherwise turn
    round the line that it stands in."""
    found = {path: unfiltered(path.read_text(encoding="utf-8")) for path in TEMPLATES}
    assert {path.relative_to(ROOT): words for path, words in found.items() if words} == {}


def test_the_rule_for_words_of_strangers_sees_what_it_is_for():
    assert unfiltered("<h1>{{ run.name }}</h1>")
    assert unfiltered('<p title="{{ run.message }}">{{ line.text or " " }}</p>')
    assert unfiltered("<title>{{ title }}</title>")
    assert not unfiltered('<input value="{{ text }}"><a href="/x/{{ run.name }}">')
    assert not unfiltered("{{ run.name | visible }} {{ piece.text }} {{ text(words) }}")


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        (IN_TEMPLATES, '<p class="a" style="color: {{ x }}">'),
        (IN_TEMPLATES, "<button onclick='x()'>"),
        (IN_TEMPLATES, '<a hx-on:click="x()">'),
        (IN_TEMPLATES, "<script>let x</script>"),
        (IN_TEMPLATES, '<script src="/static/x.js">x()</script>'),
        (IN_TEMPLATES, "{{ text | safe }}"),
        (IN_TEMPLATES, "<a title={{ text }}>"),
        (IN_TEMPLATES, '<div hx-trigger="click[x]">'),
        (IN_TEMPLATES, '<script src="https://cdn.example/x.js"></script>'),
        (IN_SCRIPTS, "a.innerHTML = text"),
        (IN_SCRIPTS, "a.outerHTML += `x`"),
        (IN_SCRIPTS, "a.insertAdjacentHTML('beforeend', text)"),
        (IN_SCRIPTS, 'setTimeout("x()", 1)'),
        (IN_SCRIPTS, 'a.setAttribute("onclick", "x()")'),
        (IN_PYTHON, "Markup(text)"),
    ],
)
def test_the_rules_see_what_they_are_for(rules, text):
    assert any(re.search(rule, text, re.IGNORECASE) for rule in rules.values())


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        (IN_TEMPLATES, '<script src="{{ static(\'js/x.js\') }}" type="module"></script>'),
        (IN_TEMPLATES, '<a href="/x?y={{ z }}" title="{{ text }}">{{ text }}</a>'),
        (IN_TEMPLATES, '{% if once %} one="1"{% endif %}'),
        (IN_SCRIPTS, "const words = fresh.outerHTML; if (a.innerHTML === b) x();"),
        (IN_SCRIPTS, "// a comment"),
    ],
)
def test_and_nothing_else(rules, text):
    assert not [what for what, rule in rules.items() if re.search(rule, text, re.IGNORECASE)]


def test_the_heads_of_tables_say_what_they_are_heads_of():
    heads = [(path, head) for path in TEMPLATES for head in HEAD.findall(path.read_text("utf-8"))]
    assert heads
    assert [
        (path.name, head) for path, head in heads if re.search(r"<th(?![^>]*scope=)", head)
    ] == []


def test_every_link_of_a_page_is_reached_by_keys_without_scripts():
    """Where one of many is enough, a script takes the others out of the way."""
    assert found(TEMPLATES, {"a link that Tab passes over": r"<a\b[^>]*tabindex"}) == []
