from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from read_runs import answer, group, held_out, question, read_run
from told_runs import info, tell, whole_run

from app.store.monitor import StoreMonitor
from app.store.queries.search import Piece, asked, search, snippet
from app.store.queries.search import _pattern as pattern_of
from trainer.monitor import GroupRecord


def said(*texts):
    return [group(0, *(answer(m, text, 0.5) for m, text in enumerate(texts)))]


@pytest.fixture(scope="module")
def run(shared_store, tmp_path_factory):
    told = {
        1: said("The sum is twenty five", "An Élan of words", 'He said "no" NEAR the end'),
        2: said("twenty and five", "nothing to see", "100 % sure * of (this)"),
        3: [GroupRecord(0, question(5, ("user", "Count the zebras")), [answer(0, "7", 1.0)])],
    }
    return read_run(
        shared_store,
        tmp_path_factory.mktemp("run"),
        told,
        evaluations={3: held_out("a held twenty")},
    )


@pytest.fixture
def found(shared_store, run):
    def ask(words, **options):
        with shared_store.read() as session:
            hits = search(session, run, words, **options)
        return [hit.answer.text for hit in hits.answers]

    return ask


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        ("twenty", ["a held twenty", "twenty and five", "The sum is twenty five"]),
        ("TWENTY five", ["twenty and five", "The sum is twenty five"]),
        ("five twen", ["twenty and five", "The sum is twenty five"]),
        ("twen five", []),  # only the last word may be the beginning of one
        ('"twenty five"', ["The sum is twenty five"]),
        ('"twen"', []),
        ("tw", []),
        ("no near", ['He said "no" NEAR the end']),
        ("", []),
        ("***", []),
    ],
)
def test_words_are_found_newest_first(found, words, texts):
    assert found(words) == texts


@pytest.mark.parametrize(
    "words",
    ['"', '""', '"twenty', "NEAR", "NEAR(", "NEAR(a b, 3)", "a AND", "OR", "NOT", "text:x", "-x",
     "^a", "*", "twenty*", "a* b*", "(", "');DROP TABLE answers;--", "%", "_", "\\", "'", "{x}",
     "a\0b", "\u202e", "é" * 300, "😀", "--", "+", '" OR 1', 'x" NEAR "y'],
)  # fmt: skip
def test_what_a_person_types_is_never_a_language(found, words):
    assert isinstance(found(words), list)


def test_no_text_breaks_the_search(found):
    @settings(max_examples=50, deadline=None)
    @given(st.text(max_size=40))
    def try_it(words):
        assert isinstance(found(words), list)

    try_it()


def test_prompts_are_found_with_the_last_place_where_they_were_answered(shared_store, run):
    with shared_store.read() as session:
        hits = search(session, run, "zeb")
        later = search(session, run, "zeb", before=10**6)
    (hit,) = hits.prompts
    assert (hit.update, hit.kind, hit.group) == (3, "train", 0)
    assert hit.snippet == (Piece("Count the ", False), Piece("zebras", True))
    assert later.prompts == ()  # they come with the first page


def test_results_come_in_pages(shared_store, tmp_path):
    told = {u: said(*(f"word {u} {m}" for m in range(4))) for u in (1, 2, 3)}
    run = read_run(shared_store, tmp_path, told)
    pages, before = [], None
    with shared_store.read() as session:
        while True:
            hits = search(session, run, "word", before, limit=5)
            pages.append([hit.answer.text for hit in hits.answers])
            before = hits.before
            if before is None:
                break
    assert [len(page) for page in pages] == [5, 5, 2]
    newest_first = [f"word {u} {m}" for u in (3, 2, 1) for m in (3, 2, 1, 0)]
    assert [text for page in pages for text in page] == newest_first


def test_only_the_run_itself_is_searched_and_only_what_counts_in_it(shared_store, tmp_path):
    first = whole_run(shared_store, tmp_path, 5, end=False)
    other = whole_run(shared_store, tmp_path, 5)
    again = StoreMonitor(shared_store, first._run_id)
    again.run_started(info(tmp_path, resumed_from_update=3))
    tell(again, 4)
    again.settle()
    again.abandon()
    with shared_store.read() as session:
        hits = search(session, first._run_id, "answer", limit=100)
        theirs = search(session, other._run_id, "answer", limit=100)
    assert [hit.answer.update for hit in hits.answers] == [4] * 8 + [3] * 8 + [2] * 8 + [1] * 8
    assert len(theirs.answers) == 40


def test_the_last_word_may_be_the_beginning_of_one():
    assert asked("one  two") == "one two*"
    assert asked('"one two"') == '"one two"'
    assert asked('say "one two') == 'say "one two'
    assert asked("one tw") == "one tw"  # two letters begin too many words
    assert asked("数") == "数*"
    assert asked("done!") == "done!"
    assert asked("  ") == ""


def marked(text, words):
    return "".join(
        f"[{piece.text}]" if piece.found else piece.text
        for piece in snippet(text, pattern_of(asked(words)))
    )


def test_a_snippet_marks_the_words_where_they_begin():
    assert marked("The sum is 25, summing up", "sum") == "The [sum] is 25, [summing] up"
    assert marked("Élan vital", "elan") == "[Élan] vital"
    assert marked("<b>bold</b> & more", "bold") == "<b>[bold]</b> & more"
    assert marked("no such word", "other") == "no such word"


def test_a_snippet_of_a_long_text_is_about_the_first_word_found():
    text = "before " * 100 + "needle" + " after" * 100
    words = marked(text, "needle")
    assert "[needle]" in words
    assert words.startswith("…")
    assert words.endswith("…")
    assert len(words) < 320
    assert re.sub(r"[\[\]…]", "", words) in text
