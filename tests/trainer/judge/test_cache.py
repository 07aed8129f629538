import json
import subprocess
import sys

import pytest

from trainer.errors import ConfigError
from trainer.judge.cache import VerdictCache, cache_key
from trainer.judge.questions import Verdict

REPLY = (Verdict(0.25, "so"), Verdict(1.0, "né"))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "cache.jsonl"


def opened(path, notes=None):
    return VerdictCache(path, (notes if notes is not None else []).append)


def test_what_was_put_is_found_by_the_next_run(path):
    opened(path).put("k", REPLY)
    cache = opened(path)
    assert cache.get("k", 2) == REPLY
    assert cache.get("other", 2) is None
    assert cache.get("k", 3) is None


def test_the_file_is_one_json_object_a_line(path):
    cache = opened(path)
    cache.put("k", REPLY)
    cache.put("l", REPLY[:1])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [
        {"v": 1, "key": "k", "verdicts": [[0.25, "so"], [1.0, "né"]]},
        {"v": 1, "key": "l", "verdicts": [[0.25, "so"]]},
    ]


def test_a_half_written_last_line_is_passed_over_and_closed(path):
    opened(path).put("k", REPLY)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole + whole[:length].replace(b'"k"', b'"l"'))
        cache = opened(path)
        assert cache.get("k", 2) == REPLY
        cache.put("m", REPLY)
        again = opened(path)
        assert again.get("k", 2) == again.get("m", 2) == REPLY


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[]",
        '{"v": 2, "key": "k", "verdicts": [[1, ""]]}',
        '{"v": 1, "key": 3, "verdicts": [[1, ""]]}',
        '{"v": 1, "key": "k", "verdicts": 3}',
        '{"v": 1, "key": "k", "verdicts": [[2, ""]]}',
        '{"v": 1, "key": "k", "verdicts": [[true, ""]]}',
        '{"v": 1, "key": "k", "verdicts": [[NaN, ""]]}',
        '{"v": 1, "key": "k", "verdicts": [[1]]}',
        "[" * 100_000,
        "\udcff\udc80",
    ],
)
def test_a_line_that_holds_no_verdict_is_passed_over(path, line):
    path.parent.mkdir()
    good = '{"v": 1, "key": "good", "verdicts": [[1, ""]]}\n'
    path.write_bytes(f"{line}\n{good}".encode("utf-8", "surrogateescape"))
    cache = opened(path)
    assert cache.get("k", 1) is None
    assert cache.get("good", 1) == (Verdict(1.0, ""),)


def test_what_another_process_adds_is_seen(path):
    here, there = opened(path), opened(path)
    there.put("k", REPLY)
    assert here.get("k", 2) is None
    here.refresh()
    assert here.get("k", 2) == REPLY


WRITER = """
import sys
from pathlib import Path
from trainer.judge.cache import VerdictCache
from trainer.judge.questions import Verdict
cache = VerdictCache(Path(sys.argv[1]), print)
for n in range(200):
    cache.put(f"{sys.argv[2]}{n}", (Verdict(0.5, "x" * 5000),))
"""


def test_two_processes_write_whole_lines(path):
    command = [sys.executable, "-c", WRITER, str(path)]
    writers = [subprocess.Popen([*command, name]) for name in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    cache = opened(path)
    assert all(cache.get(f"{name}{n}", 1) for name in "ab" for n in range(200))
    assert len(path.read_text().splitlines()) == 400


def test_a_file_that_is_deleted_during_the_run_is_begun_anew(path):
    cache = opened(path)
    cache.put("k", REPLY)
    path.unlink()
    cache.refresh()
    cache.put("l", REPLY)
    cache.refresh()
    assert cache.get("k", 2) == cache.get("l", 2) == REPLY
    assert opened(path).get("l", 2) == REPLY


def test_a_file_that_can_no_longer_be_written_ends_the_caching_and_not_the_run(path):
    notes = []
    cache = opened(path, notes)
    path.unlink()
    path.mkdir()
    cache.put("k", REPLY)
    cache.put("l", REPLY)
    assert cache.get("k", 2) == cache.get("l", 2) == REPLY
    assert len(notes) == 1
    assert "no longer cached" in notes[0]


def test_a_place_that_cannot_hold_a_file_is_refused_at_once(tmp_path):
    with pytest.raises(ConfigError, match="must be a regular file"):
        opened(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot use this as cache_path"):
        opened(tmp_path / "file" / "cache.jsonl")


def test_a_key_depends_on_every_part_and_on_their_order():
    keys = {
        cache_key("url", {"model": "m", "messages": ["a", "b"]}),
        cache_key("url", {"model": "m", "messages": ["b", "a"]}),
        cache_key("url", {"model": "n", "messages": ["a", "b"]}),
        cache_key("url", {"model": "m", "temperature": 0, "messages": ["a", "b"]}),
        cache_key("lru", {"model": "m", "messages": ["a", "b"]}),
    }
    assert len(keys) == 5
    assert cache_key({"a": 1, "b": 2}) == cache_key({"b": 2, "a": 1})
