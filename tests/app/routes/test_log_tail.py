from __future__ import annotations

import os

from app.routes.log_tail import LogTail, read_tail


def test_a_short_log_is_whole(tmp_path):
    path = tmp_path / "worker.log"
    path.write_text("first\nsecond\n")
    assert read_tail(path) == LogTail("first\nsecond\n", 13, cut=False)


def test_of_a_long_one_the_last_whole_lines_are_read(tmp_path):
    path = tmp_path / "worker.log"
    path.write_text("".join(f"line {n:05}\n" for n in range(1000)))
    tail = read_tail(path, most=40)
    assert tail == LogTail("line 00997\nline 00998\nline 00999\n", 11_000, cut=True)


def test_one_endless_line_is_cut_wherever_that_is(tmp_path):
    path = tmp_path / "worker.log"
    path.write_bytes("ü".encode() * 1000)
    tail = read_tail(path, most=41)
    assert tail is not None
    assert tail.text == "\ufffd" + "ü" * 20


def test_colours_are_left_out_and_other_controls_made_visible(tmp_path):
    path = tmp_path / "worker.log"
    path.write_bytes(b"\x1b[1;31mred\x1b[0m \x1b[2J\x1b]0;title\x07 a\rb \xe2\x80\xae \xff\n")
    tail = read_tail(path)
    assert tail is not None
    assert tail.text == "red ␛[2J␛]0;title␇ a␍b \\u202e \ufffd\n"


def test_what_is_no_file_is_no_log(tmp_path):
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", "link", "pipe", "."):
        assert read_tail(tmp_path / name) is None
