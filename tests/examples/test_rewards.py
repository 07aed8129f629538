"""The gallery of reward programs: each as a process, on good, bad and hostile answers."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

from trainer.chat.dataset import read_conversations, read_prompts
from trainer.config import load_config, refuse_unavailable
from trainer.reward.program import RewardRequest, open_reward_program

PROGRAMS = (
    "composed.py",
    "exact_match.py",
    "gsm8k.py",
    "json_schema.py",
    "length.py",
    "pattern.py",
    "unit_tests.py",
)
HELLO = {"protocol": "retrograd-reward/1"}

HOSTILE = (
    "",
    " \n\t ",
    "\x00",
    "\ud800",
    "数 ٣ ４２ 😀 é",
    "#### " * 1000,
    "[" * 20_000,
    "```\n" * 500,
    "9" * 20_000,
    "x" * 1_000_000,
    '{"reward": 1.0}',
    '{"_retrograd_batch_end": 1}\n{"protocol": "retrograd-reward/1"}',
)
"""Answers that no program may stumble over, and that none pays for."""

METADATA = {
    "answer": "72",
    "pattern": "[0-9]+ apples",
    "target": 5,
    "schema": {"type": "integer"},
    "tests": [["double(2)", 4]],
}
"""What each program finds something in that it needs."""


@pytest.fixture(scope="module")
def gallery(examples):
    return examples / "rewards"


def lines_for(metadata, completions):
    """Of a batch in which all prompts have the same `metadata`, or each its own of a list."""
    each = metadata if isinstance(metadata, list) else [metadata] * len(completions)
    requests = [
        {"prompt": "?", "completion": text, "messages": [], "metadata": fields}
        | {"_retrograd_batch": 1, "_retrograd_index": index}
        for index, (fields, text) in enumerate(zip(each, completions, strict=True))
    ]
    return [HELLO, *requests, {"_retrograd_batch_end": 1}]


def started(command, folder, lines):
    sent = "".join(json.dumps(line) + "\n" for line in lines)
    return subprocess.run(
        [sys.executable, *command], input=sent, capture_output=True, encoding="utf-8", cwd=folder
    )


@pytest.fixture
def told(gallery):
    """The replies of a program of the gallery to completions of one prompt."""

    def ask(command, metadata, *completions):
        lines = lines_for(metadata, completions)
        done = started(command, gallery, lines)
        assert done.returncode == 0, done.stderr
        first, *replies, last = map(json.loads, done.stdout.splitlines())
        assert (first, last) == (HELLO, lines[-1])
        assert [reply.pop("_retrograd_batch") for reply in replies] == [1] * len(replies)
        indices = [reply.pop("_retrograd_index") for reply in replies]
        assert indices == list(range(len(completions)))
        return replies

    return ask


@pytest.fixture
def paid(told):
    """The rewards alone."""
    return lambda *asked: [reply["reward"] for reply in told(*asked)]


@pytest.fixture
def refused(gallery):
    """What a program says that ends instead of scoring."""

    def ask(command, metadata=METADATA, completion="72"):
        done = started(command, gallery, lines_for(metadata, [completion]))
        assert done.returncode != 0
        assert "Traceback" not in done.stderr
        return done.stderr

    return ask


# What all of them have in common.


def test_these_are_the_programs(gallery):
    found = {path.name for path in gallery.glob("*.py")}
    assert found == {*PROGRAMS, "gsm8k_to_prompts.py"}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_needs_nothing_but_python(gallery, program):
    tree = ast.parse((gallery / program).read_text(encoding="utf-8"))
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module.partition(".")[0])
    beside = {"gsm8k", "length"} if program == "composed.py" else set()
    assert imported - beside <= sys.stdlib_module_names


def test_all_programs_answer_by_the_same_loop(gallery):
    loops = set()
    for program in PROGRAMS:
        text = (gallery / program).read_text(encoding="utf-8")
        tree = ast.parse(text)
        [loop] = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "serve"]
        loops.add(ast.get_source_segment(text, loop))
    assert len(loops) == 1


@pytest.mark.parametrize("program", [p for p in PROGRAMS if p not in ("length.py",)])
def test_hostile_answers_get_nothing_and_end_nothing(paid, program):
    began = time.monotonic()
    rewards = paid([program], METADATA, *HOSTILE)
    # Strange JSON is JSON all the same: 0.2 for being that.
    best = 0.2 if program == "json_schema.py" else 0.0
    assert max(rewards) <= best
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_completion_that_is_no_text_ends_the_program_with_a_word(refused, program):
    assert "`completion` has to be text" in refused([program], completion=["72"])


@pytest.mark.parametrize("program", PROGRAMS)
def test_another_protocol_ends_the_program_with_a_word(gallery, program):
    done = started([program], gallery, [{"protocol": "retrograd-reward/9"}])
    assert done.returncode == 1
    assert "speaks retrograd-reward/1, not retrograd-reward/9" in done.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_oneshot_works_as_well(gallery, program):
    [request] = [{"prompt": "?", "completion": "#### 72", "messages": [], "metadata": METADATA}]
    done = started([program], gallery, [request])
    assert done.returncode == 0, done.stderr
    [reply] = map(json.loads, done.stdout.splitlines())
    assert set(reply) == {"reward", "parts"}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_line_without_what_the_program_needs_ends_it_with_a_word(refused, program):
    said = refused([program], metadata={})
    assert said.count("\n") == 1
    assert "has to" in said or said.startswith("no ")


# Exact match.


MATCHES = [
    # answer, completion, reward, reward with --loose
    ("Paris", "Paris", 1, 1),
    ("Paris", "  Paris\n", 1, 1),
    ("New York", "New \n York", 1, 1),
    ("Paris", "paris", 0, 1),
    ("Paris", "Paris.", 0, 1),
    ("Paris", "“Paris”", 0, 0),  # not ASCII's quotation marks
    ("42", "４２", 0, 1),  # full-width digits
    ("STRASSE", "straße", 0, 1),
    ("Paris", "It is Paris", 0, 0),
    ("Paris", "Paris London", 0, 0),
    ("Paris", "", 0, 0),
    (7, "7", 1, 1),
    (7, "07", 0, 0),
    (["UK", "United Kingdom"], "UK", 1, 1),
    (["UK", "United Kingdom"], "united kingdom", 0, 1),
]


@pytest.mark.parametrize(
    ("options", "column"), [([], 2), (["--loose"], 3)], ids=["strict", "loose"]
)
def test_exact_match(paid, options, column):
    metadata = [{"answer": row[0]} for row in MATCHES]
    rewards = paid(["exact_match.py", *options], metadata, *(row[1] for row in MATCHES))
    assert [(*row[:2], r) for row, r in zip(MATCHES, rewards, strict=True)] == [
        (*row[:2], row[column]) for row in MATCHES
    ]


def test_exact_match_pays_a_little_for_shared_words_and_not_twice(told):
    command = ["exact_match.py", "--near", "0.3"]
    answers = ("red blue green", "red blue", "red red red red", "green blue red", "yellow")
    replies = told(command, {"answer": "red blue green"}, *answers)
    # F1: 2 · shared / (ours + theirs).
    expected = [1, 2 * 2 / 5, 2 * 1 / 7, 1, 0]
    assert [r["parts"]["near"] for r in replies] == pytest.approx(expected, abs=1e-4)
    rewards = [1, 0.3 * 4 / 5, 0.3 * 2 / 7, 0.3, 0]
    assert [r["reward"] for r in replies] == pytest.approx(rewards, abs=1e-4)


def test_exact_match_refuses_a_weight_that_pays_for_wrong_answers(refused):
    assert "--near has to be at least 0 and less than 1" in refused(["exact_match.py", "--near=1"])


# Patterns.

FORM = r"(?P<thought>[^{}]*)\{(?P<answer>[a-z]+)\}"


def test_a_pattern_pays_for_the_form_and_for_what_is_in_it(told):
    replies = told(
        ["pattern.py", FORM],
        {"answer": "cat"},
        "It meows {cat}",
        "It meows {dog}",
        "cat",
        "{cat} no",
    )
    assert [r["reward"] for r in replies] == [1, 0.2, 0, 0]
    assert replies[1]["parts"] == {"form": 1, "right": 0}


def test_a_pattern_that_is_found_twice_is_a_list_of_guesses(paid):
    command = ["pattern.py", "--find", "--form", "0.5", r"\{(?P<answer>[a-z]+)\}"]
    answers = ("so {cat}.", "{dog}, no", "{cat} or {dog}", "{cat} {cat}", "cat")
    assert paid(command, {"answer": "cat"}, *answers) == [1, 0.5, 0, 0, 0]


def test_a_prompts_own_pattern_goes_first(paid):
    assert paid(["pattern.py", "a+"], {"pattern": "b+"}, "bbb", "aaa") == [1, 0]


def test_a_pattern_without_an_answer_pays_for_the_form_alone(paid):
    assert paid(["pattern.py", "[0-9]{4}"], {}, "1999", "about 1999") == [1, 0]


def test_a_pattern_that_explodes_is_ended_and_said(gallery):
    lines = lines_for({}, ["a" * 64, "aab"])
    began = time.monotonic()
    done = started(["pattern.py", "(a+)+b"], gallery, lines)
    assert time.monotonic() - began < 30
    assert [json.loads(line).get("reward") for line in done.stdout.splitlines()[1:3]] == [0, 1]
    assert "'(a+)+b' took over 1 s on 'aaaa" in done.stderr


def test_what_is_no_pattern_is_said_at_once(refused):
    assert "is no regular expression" in refused(["pattern.py", "(a"])


# Word problems.


NUMBERS = [
    # answer, completion, reward
    ("72", "6 times 12 is 72.\n#### 72", 1),
    ("72", "#### 72", 1),
    ("72", "####72.", 1),
    ("72", "#### 72.00", 1),
    ("1200", "#### 1,200", 1),
    ("1,200", "#### $1200", 1),
    ("-7", "#### -7", 1),
    ("7", "#### -7", 0.1),
    ("7", "#### +7", 1),
    ("0.5", "#### 0.50", 1),
    ("40", "#### 40%", 1),
    ("Some words.\n#### 1,260", "#### 1260", 1),  # a worked solution as `answer`
    ("72", "#### 71", 0.1),
    ("72", "So it is 72.", 0.3),
    ("72", "72 or 73", 0),
    ("72", "#### 71 #### 72", 0),
    ("72", "#### 72 or 71", 0),
    ("72", "#### seventy-two", 0),
    ("72", "#### ７２", 0),
    ("72", "#### " + "7" * 5000, 0),
    ("1200", "#### 12,00", 0),
    ("72", "####", 0),
    ("72", "", 0),
]


def test_the_number_behind_the_mark(paid):
    metadata = [{"answer": row[0]} for row in NUMBERS]
    rewards = paid(["gsm8k.py"], metadata, *(row[1] for row in NUMBERS))
    assert [(*row[:2], r) for row, r in zip(NUMBERS, rewards, strict=True)] == NUMBERS


def test_an_answer_without_a_number_is_refused_with_its_text(refused):
    assert "is 'many'" in refused(["gsm8k.py"], {"answer": "many"})


def convert(gallery, *arguments):
    return subprocess.run(
        [sys.executable, "gsm8k_to_prompts.py", *arguments],
        capture_output=True,
        encoding="utf-8",
        cwd=gallery,
    )


def test_the_prompts_are_those_that_the_converter_makes_of_the_ten_problems(gallery):
    done = convert(gallery, "word_problems.jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (gallery / "gsm8k.jsonl").read_text(encoding="utf-8")


def test_the_ten_problems_are_worked_out_rightly(gallery):
    rows = [json.loads(r) for r in (gallery / "word_problems.jsonl").read_text().splitlines()]
    assert len(rows) == 10
    for row in rows:
        sums = [part.partition(">>")[0] for part in row["answer"].split("<<")[1:]]
        assert sums
        for one in sums:
            left, right = one.split("=")
            # Digits and signs of our own file.
            assert eval(left, {"__builtins__": {}}) == float(right), one
        number = row["answer"].rpartition("#### ")[2].replace(",", "")
        assert number == sums[-1].partition("=")[2], "the last sum is the answer"


def test_texts_for_sft_are_conversations_without_the_marked_sums(gallery, tmp_path):
    done = convert(gallery, "--texts", "--limit", "3", "--system", "", "word_problems.jsonl")
    texts = tmp_path / "texts.jsonl"
    texts.write_text(done.stdout, encoding="utf-8")
    lines = read_conversations(texts)
    assert [[m.role for m in line.content] for line in lines] == [["user", "assistant"]] * 3
    first = lines[0].content[1].content
    assert first == "There are 6 * 14 = 84 rolls.\nAfter noon 84 - 59 = 25 are left.\n#### 25"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "problems.jsonl:2: this line is not JSON"),
        ("[]", "problems.jsonl:2: `question` and `answer` have to be texts"),
        ('{"question": "?", "answer": 3}', "problems.jsonl:2: `question` and `answer`"),
        ('{"question": "?", "answer": "three"}', "problems.jsonl:2: `answer` has to end with ####"),
        ('{"question": "?", "answer": "#### three"}', "and ends with '#### three'"),
    ],
)
def test_the_converter_names_the_line_that_it_cannot_read(gallery, tmp_path, line, said):
    file = tmp_path / "problems.jsonl"
    file.write_text('{"question": "2 + 2?", "answer": "#### 4"}\n' + line, encoding="utf-8")
    done = convert(gallery, str(file))
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_the_converter_says_that_a_file_is_not_there(gallery):
    done = convert(gallery, "nowhere.jsonl")
    assert done.returncode == 2
    assert "nowhere.jsonl cannot be read" in done.stderr


# Unit tests.

DOUBLE = {"tests": [["double(2)", 4], ["double('ab')", "abab"], ["double(0.5)", 1.0]]}


def test_code_is_paid_by_the_calls_that_give_the_right_value(told):
    replies = told(
        ["unit_tests.py"],
        DOUBLE,
        "Here it is:\n```python\ndef double(x):\n    return x * 2\n```\nIt doubles.",
        "def double(x):\n    return 4",
        "def double(x):\n    raise ValueError",
        "def double(x)",
        "def twice(x):\n    return x * 2",
        "```\ndef double(x): return x * 2\n```\nor\n```\ndef double(x): return x + x\n```",
        "I cannot write code.",
        "print('noise')\ndef double(x):\n    print('more of it')\n    return x + x",
    )
    assert [r["reward"] for r in replies] == [1, 0.4, 0, 0, 0, 0, 0, 1]
    assert replies[1]["parts"] == {"runs": 1, "passed": 0.3333}


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos._exit(0)",
        "raise SystemExit(0)",
        "import os\nfor fd in range(3, 20):\n    try: os.write(fd, b'[0, true]\\n')\n"
        "    except OSError: pass\nos._exit(0)",
        "class Any:\n    def __eq__(self, other): return True\ndef double(x): return Any()",
        "import json\njson.dumps = lambda *_, **__: '[0, true]'\ndef double(x): return True",
        "import sys\nprint('ok 3 passed', file=sys.stderr)",
    ],
    ids=["ends", "leaves", "writes", "equals all", "dumps", "claims"],
)
def test_code_that_claims_to_pass_has_passed_nothing(told, code):
    [reply] = told(["unit_tests.py"], DOUBLE, code)
    assert reply["parts"]["passed"] == 0


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time\ntime.sleep(600)",
        "x = []\nwhile True: x.append(bytearray(2**20))",
        "x = '9' * 10**10",
        "with open('full', 'wb') as f:\n    while True: f.write(bytes(2**20))",
        "while True: print('x' * 1000)",
        "f = lambda: f()\nf()",
        "x = " + "(" * 500 + ")" * 500,
        "import sys\nsys.setrecursionlimit(10**9)\nf = lambda n: f(n + 1)\nf(0)",
    ],
    ids=["loops", "sleeps", "grows", "jumps", "writes", "prints", "recurses", "nests", "crashes"],
)
def test_code_that_goes_wrong_is_ended_in_time(told, code):
    began = time.monotonic()
    good = "def double(x):\n    return x * 2"
    replies = told(["unit_tests.py", "--seconds", "1.5", "--memory-mib", "256"], DOUBLE, code, good)
    assert [r["reward"] for r in replies] == [0, 1]
    assert time.monotonic() - began < 30


def test_values_that_json_cannot_hold_are_wrong_and_stop_no_other_call(told):
    tests = [["f()", 1], ["[1]", [1]], ["(1, 2)", [1, 2]], ["{1: 2}", {"1": 2}], ["True", 1]]
    tests += [["float('nan')", 0], ["1", 1.0], ["0.1 + 0.2", 0.3], ["'1'", 1], ["None", None]]
    [reply] = told(["unit_tests.py"], {"tests": tests}, "def f():\n    return {1, 2}")
    # All but f(), True against 1, the NaN and '1' against 1.
    assert reply["parts"]["passed"] == 0.6


@pytest.mark.parametrize(
    "code",
    [
        "def double(x):\n    return 10**400",
        "import os\nos.write(3, b'[1e400, 1]\\n')\ndef double(x):\n    return None",
        "def double(x):\n    return '1' * 10**7",
    ],
)
def test_numbers_of_any_size_are_wrong_and_end_nothing(told, code):
    good = "def double(x):\n    return x * 2"
    replies = told(["unit_tests.py"], {"tests": [["double(2)", 4.5], ["double(3)", 6]]}, code, good)
    assert [reply["parts"]["passed"] for reply in replies] == [0, 0.5]


def test_code_sees_neither_the_environment_nor_the_right_values(gallery, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "do not tell")
    tests = [["seen()", []], ["where()", []]]
    code = (
        "import os, __main__\n"
        "def seen(): return [k for k in os.environ if k == 'SECRET_KEY']\n"
        "def where(): return os.listdir('.') + [k for k in __main__.job if k == 'values']\n"
    )
    done = started(["unit_tests.py"], gallery, lines_for({"tests": tests}, [code]))
    assert json.loads(done.stdout.splitlines()[1])["parts"]["passed"] == 1


@pytest.mark.skipif(os.getuid() == 0, reason="root may start processes whatever the limit")
def test_code_starts_no_processes(told):
    code = "import os\ndef double(x):\n    os.fork()\n    return x * 2"
    [reply] = told(["unit_tests.py"], DOUBLE, code)
    assert reply["parts"]["passed"] == 0


def test_what_code_has_started_is_ended_with_it(gallery, tmp_path):
    """For root as well, who may start processes: the group is killed."""
    mark = tmp_path / "alive"
    code = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    time.sleep(1.0)\n"
        f"    open({str(mark)!r}, 'w').close()\n"
        "    os._exit(0)\n"
        "def double(x): return x * 2\n"
    )
    done = started(["unit_tests.py"], gallery, lines_for(DOUBLE, [code]))
    assert done.returncode == 0, done.stderr
    time.sleep(1.5)
    assert not mark.exists()


def test_no_folder_is_left_behind(gallery, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code = "open('a', 'w').write('x')\nimport os\nos.makedirs('b/c')\ndef double(x): return x * 2"
    done = started(["unit_tests.py"], gallery, lines_for(DOUBLE, [code]))
    assert json.loads(done.stdout.splitlines()[1])["reward"] == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("tests", [[], "double(2)", [["double(2)"]], [[2, 4]]])
def test_tests_of_another_shape_are_refused(refused, tests):
    assert "has to be" in refused(["unit_tests.py"], {"tests": tests})


# JSON.

CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 40},
        "people": {"type": "integer", "minimum": 0, "exclusiveMaximum": 1e9},
        "kind": {"enum": ["town", "city", None]},
        "rivers": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 3},
        "unit": {"const": 1},
    },
    "required": ["name", "people"],
    "additionalProperties": False,
}
BERN = {"name": "Bern", "people": 134000}


SHAPES = [
    (BERN, 1),
    (BERN | {"people": 134000.0, "kind": None, "rivers": ["Aare"], "unit": 1.0}, 1),
    (BERN | {"people": "134000"}, 0),
    (BERN | {"people": 134000.5}, 0),
    (BERN | {"people": True}, 0),
    (BERN | {"people": -1}, 0),
    (BERN | {"people": 1e9}, 0),
    (BERN | {"name": ""}, 0),
    (BERN | {"name": "B" * 41}, 0),
    (BERN | {"kind": "village"}, 0),
    (BERN | {"rivers": []}, 0),
    (BERN | {"rivers": ["a", 2]}, 0),
    (BERN | {"rivers": ["a", "b", "c", "d"]}, 0),
    (BERN | {"unit": True}, 0),
    (BERN | {"mayor": "?"}, 0),
    ({"name": "Bern"}, 0),
    ([BERN], 0),
    (None, 0),
]


def test_a_shape_is_kept_or_not_as_jsonschema_says(told):
    values, shapes = zip(*SHAPES, strict=True)
    replies = told(["json_schema.py"], {"schema": CITY}, *map(json.dumps, values))
    found = [reply["parts"]["shape"] for reply in replies]
    assert list(zip(values, found, strict=True)) == SHAPES
    assert [r["reward"] for r in replies] == pytest.approx([0.2 + 0.8 * one for one in shapes])
    judge = jsonschema.Draft202012Validator(CITY)
    assert [judge.is_valid(value) for value in values] == [bool(one) for one in shapes]


def test_values_are_paid_by_their_share(told):
    metadata = {"schema": CITY, "answer": BERN}
    answers = [BERN, BERN | {"people": 5}, BERN | {"kind": "city"}, {"name": "Bern"}]
    replies = told(["json_schema.py"], metadata, *map(json.dumps, answers))
    # One member that nobody asked for makes three, of which two are right.
    assert [r["parts"]["right"] for r in replies] == [1, 0.5, 0.6667, 0]
    assert [r["reward"] for r in replies] == pytest.approx([1, 0.75, 0.8333, 0.2], abs=1e-3)


NOT_JSON = (
    *("", "Bern", "{'name': 'Bern'}", '{"a": 1, "a": 1}', "NaN", "1e999", "{} {}"),
    *("```\n{}\n```", "1" * 5000),
)


def test_what_is_not_json_gets_nothing(paid):
    assert paid(["json_schema.py"], {"schema": {}}, *NOT_JSON) == [0] * len(NOT_JSON)


def test_a_block_may_be_fenced_where_that_is_said(paid):
    block = f"```json\n{json.dumps(BERN)}\n```"
    answers = (block, f"Here:\n{block}\nThat is it.", json.dumps(BERN), f"{block}\n{block}")
    assert paid(["json_schema.py", "--fenced"], {"schema": CITY}, *answers) == [1, 1, 1, 0]
    assert paid(["json_schema.py"], {"schema": CITY}, block) == [0]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"pattern": "a+"}, "does not know 'pattern'"),
        ({"items": {"$ref": "#"}}, "schema.items: this program does not know '$ref'"),
        ({"type": "text"}, "'text' is no type of JSON"),
        ({"additionalProperties": {}}, "additionalProperties has to be true or false"),
        ([], "schema has to be an object"),
    ],
)
def test_a_schema_that_asks_for_more_is_refused(refused, schema, said):
    assert said in refused(["json_schema.py"], {"schema": schema}, "{}")


def test_a_schema_may_come_from_a_file(gallery, tmp_path):
    file = tmp_path / "city.json"
    file.write_text(json.dumps(CITY), encoding="utf-8")
    command = ["json_schema.py", "--schema", str(file)]
    done = started(command, gallery, lines_for({}, [json.dumps(BERN)]))
    assert json.loads(done.stdout.splitlines()[1])["reward"] == 1


# Length, and several at once.


def test_length_falls_smoothly_on_both_sides_and_never_to_nothing(told):
    command = ["length.py", "--target", "40", "--width", "20"]
    counts = (40, 30, 50, 20, 60, 0, 400)
    replies = told(command, {}, *("word " * count for count in counts))
    # 1 / (1 + (off / 20)²)
    expected = [1, 0.8, 0.8, 0.5, 0.5, 0.2, 1 / 325]
    assert [r["reward"] for r in replies] == pytest.approx(expected, abs=1e-6)
    assert [r["parts"]["length"] for r in replies] == list(counts)


def test_a_prompts_own_target_goes_first_and_characters_can_be_counted(paid):
    command = ["length.py", "--unit", "characters", "--target", "99"]
    assert paid(command, {"target": 4}, "数字四个", " four ", "sixsix") == [1, 1, 0.5]


@pytest.mark.parametrize("target", [0, -3, True, "40", None])
def test_a_target_has_to_be_a_number_above_0(refused, target):
    assert "`target` has to be a number above 0" in refused(["length.py"], {"target": target})


def test_brevity_is_paid_for_only_where_the_number_is_right(told):
    long = "word " * 78 + "#### 72"  # 80 words, twice the 40 that are aimed at
    brief = "word " * 38 + "#### 72"
    replies = told(["composed.py"], {"answer": "72"}, brief, long, "#### 71", "no", brief + "1")
    rewards = [1.2, 1 + 0.2 / 5, 0.1, 0, 0.1]
    assert [r["reward"] for r in replies] == pytest.approx(rewards, abs=1e-6)
    assert replies[0]["parts"] == {"solved": 1, "brief": 0.2, "right": 1}


# As a run uses them.


def test_the_configuration_loads_and_its_answers_are_paid_in_full(gallery):
    config = load_config(gallery / "grpo.toml")
    refuse_unavailable(config)
    lines = read_prompts(config.grpo.prompts)
    requests = [RewardRequest(line, f"#### {line.metadata['answer']}") for line in lines]
    with open_reward_program(
        config.grpo.reward_command,
        mode="persistent",
        timeout_seconds=60,
        folder=gallery,
        judge_allowed=False,
    ) as opened:
        assert [reply.reward for reply in opened.score(requests)] == [1.0] * 10


TRIED = {
    "exact_match.py": ("Paris", {"answer": "Paris"}),
    "pattern.py": ("4 apples", {"answer": "4 apples", "pattern": "[0-9]+ apples"}),
    "gsm8k.py": ("#### 72", {"answer": "#### 72"}),
    "composed.py": ("#### 72", {"answer": "#### 72"}),
    "json_schema.py": ("[1]", {"answer": "[1]", "schema": {"type": "array"}}),
    "length.py": ("one two", {"answer": "one two", "target": 2}),
    "unit_tests.py": ("f = abs", {"answer": "f = abs", "tests": [["f(-1)", 1]]}),
}


ALL_BUT_ONE = [pytest.param(p, marks=pytest.mark.full) for p in PROGRAMS if p != "unit_tests.py"]


@pytest.mark.parametrize("program", ["unit_tests.py", *ALL_BUT_ONE])
def test_retrograd_reward_test_tries_it(gallery, tmp_path, program):
    _, fields = TRIED[program]
    line = {"messages": [{"role": "user", "content": "?"}], **fields}
    (tmp_path / "gsm8k.jsonl").write_text(json.dumps(line), encoding="utf-8")
    for file in gallery.glob("*.py"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    text = (gallery / "grpo.toml").read_text(encoding="utf-8")
    config = tmp_path / "grpo.toml"
    config.write_text(text.replace('"gsm8k.py"', f'"{program}"'), encoding="utf-8")
    command = Path(sys.executable).with_name("retrograd")
    done = subprocess.run(
        [command, "reward", "test", config], capture_output=True, encoding="utf-8", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "4 answers scored, rewards from" in done.stdout
    received = [r[2:] for r in done.stdout.splitlines() if r.startswith("←")]
    replies = [json.loads(r) for r in received if "reward" in r and "protocol" not in r]
    own, *others = [reply["reward"] for reply in replies]
    if program != "json_schema.py":  # whose `answer` is a value, and not the text of an answer
        assert own > max(others)
