from __future__ import annotations

from app.jobs.log import beginning, log_tail
from app.jobs.workspace import LOG


def test_the_end_of_a_log_is_that_of_the_newest_process(tmp_path):
    log = tmp_path / LOG
    assert log_tail(tmp_path) == ""
    log.write_bytes(beginning() + b"the first attempt\n" + beginning() + b"the second one\n")
    assert log_tail(tmp_path) == "the second one"
    log.write_bytes(log.read_bytes() + beginning())
    assert log_tail(tmp_path) == "", "one that said nothing has said nothing"


def test_a_log_without_a_mark_is_shown_as_it_is(tmp_path):
    (tmp_path / LOG).write_bytes(b"x" * 5000 + b"\nthe end\xff")
    assert log_tail(tmp_path).endswith("x\nthe end\ufffd")
    assert len(log_tail(tmp_path)) == 3000


def test_words_inside_of_a_line_are_no_mark(tmp_path):
    mark = beginning().decode().strip()
    (tmp_path / LOG).write_text(f"said: {mark}\nand more\n")
    assert log_tail(tmp_path) == f"said: {mark}\nand more"
