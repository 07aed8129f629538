import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.config.lines import line_index

ODD = '''\
# a comment with [header] and key = "value"
top = 1 # the end
"quoted key" = 'a # b'
'literal.key' = "x \\" ] } , # y"
"\\u0061\\"b" = 2
dotted . "in ner".x = true

  [ table ]  # [not.this]
text = """
[fake]
key = 1
\\""" still text "" \"""""
after = \'\'\'
\'\'\'
quotes = \'\'\'it''s\'\'\'\'\'
list = [ # ]
  [1, 2], "]",
  { a = 1, b = [3] }, """
""", # the last
]
next = 1979-05-27 07:32:00 # a time
inline = { x = 1, "y z" = [1, 2], deep = { er.still = 'v' } }
empty = {}
[table.below]
a.b.c = -1_000
a.b.d = 0x1F
[other."x.y"]
k=+inf
[[many]]
n = 1
[[many]]
m = 2
[many.sub]
s = 3
'''


def leaves(value: dict[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Every key that holds no table, with its value."""
    found = {}
    for key, below in value.items():
        if isinstance(below, dict):
            found |= leaves(below, (*path, key))
        else:
            found[(*path, key)] = below
    return found


def parsed(text: str) -> Any:
    return tomllib.loads(f"value = {text}")["value"]


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("top",), 2),
        (("quoted key",), 3),
        (("literal.key",), 4),
        (('a"b',), 5),
        (("dotted", "in ner", "x"), 6),
        (("dotted",), 6),
        (("table",), 8),
        (("table", "text"), 9),
        (("table", "after"), 13),
        (("table", "quotes"), 15),
        (("table", "list"), 16),
        (("table", "next"), 21),
        (("table", "inline"), 22),
        (("table", "inline", "deep", "er", "still"), 22),
        (("table", "empty"), 23),
        (("table", "below"), 24),
        (("table", "below", "a"), 25),
        (("table", "below", "a", "b", "d"), 26),
        (("other", "x.y", "k"), 28),
        (("many", "n"), 30),
        (("many", "m"), 32),
        (("many", "sub", "s"), 34),
    ],
)
def test_keys_of_an_odd_file_are_on_their_lines(path, line):
    tomllib.loads(ODD)
    assert line_index(ODD).marks[path].line == line


def test_values_of_an_odd_file_are_as_written():
    index = line_index(ODD)
    values = tomllib.loads(ODD)
    del values["many"]  # an array of tables has no value of its own
    for path, value in leaves(values).items():
        assert parsed(index.value(path)) == value


def test_a_key_that_is_not_there_has_the_line_of_what_is_around_it():
    index = line_index("a = 1\n[b.c]\nd = 2\n")
    assert index.line(("b", "c", "x", "y")) == 2
    assert index.line(("b", "x")) == 2
    assert index.line(("z",)) is None
    assert index.value(("b",)) is None


def test_a_header_takes_over_from_a_section_below_it():
    assert line_index("[a.b]\nx = 1\n[a]\ny = 2\n").line(("a", "z")) == 3


def test_an_empty_file_has_no_marks():
    assert line_index("").marks == {}
    assert line_index("\n # nothing\n").marks == {}


KEYS = st.one_of(
    st.from_regex(r"[A-Za-z0-9_-]{1,6}", fullmatch=True),
    st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=5).map(
        lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    ),
    st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="'"), max_size=5).map(
        lambda text: f"'{text}'"
    ),
)
BODIES = st.text(st.sampled_from("ab \"'#[]{}=,\n"), max_size=12)
SCALARS = st.one_of(
    st.sampled_from(["1", "-0.5e3", "true", "inf", "0b11", "07:32:00", "1979-05-27T07:32:00Z"]),
    BODIES.map(lambda body: '"' + body.replace('"', '\\"').replace("\n", "\\n") + '"'),
    BODIES.map(lambda body: "'" + body.replace("'", "").replace("\n", "") + "'"),
    BODIES.map(lambda body: '"""' + body.replace('"""', '""\\"') + '\\t"""'),
    BODIES.map(lambda body: "'''" + body.replace("'", "") + "'''"),
    st.sampled_from(['""""a"""""', "''''a'''''", '""', "''", '""""""', "''''''"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: "[ # ]\n" + ",\n".join(items) + "]"),
        st.lists(st.tuples(KEYS, inner), max_size=3).map(
            lambda pairs: "{ " + ", ".join(f"{key} = {value}" for key, value in pairs) + " }"
        ),
    ),
    max_leaves=6,
)
LINES = st.lists(
    st.one_of(
        st.tuples(st.just("pair"), st.lists(KEYS, min_size=1, max_size=3), VALUES),
        st.tuples(st.just("table"), st.lists(KEYS, min_size=1, max_size=3), st.just("")),
        st.tuples(st.just("blank"), st.just([]), st.sampled_from(["", "# [x] = 'y", "\t"])),
    ),
    max_size=8,
)


@settings(deadline=None)
@given(LINES)
def test_any_file_that_tomllib_reads_is_indexed(statements):
    text, values, starts = "", {}, {}
    table: tuple[str, ...] = ()
    for kind, keys, rest in statements:
        path = tuple(next(iter(tomllib.loads(f"{key} = 1"))) for key in keys)
        added = {"pair": f"{'.'.join(keys)} = {rest}\n", "blank": f"{rest}\n"}.get(
            kind, f"[{' . '.join(keys)}]\n"
        )
        try:
            values = tomllib.loads(text + added)
        except tomllib.TOMLDecodeError:
            continue
        if kind == "table":
            table = path
        if kind != "blank":
            starts[path if kind == "table" else table + path] = text.count("\n") + 1
        text += added
    index = line_index(text)
    for path, line in starts.items():
        assert index.marks[path].line == line
    for path, value in leaves(values).items():
        assert repr(parsed(index.value(path))) == repr(value)
