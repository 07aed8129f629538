from __future__ import annotations

import pytest

from app.jobs.keys import Named
from app.jobs.workspace import Workspace


@pytest.fixture
def top(tmp_path):
    folder = tmp_path / "workspace"
    for name in ("prompts.jsonl", "data/more.jsonl", "output/old.jsonl", ".env", "runs/1/x.jsonl"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    (tmp_path / "secret.jsonl").write_text("{}")
    return folder


@pytest.fixture
def find(tmp_path, top):
    run = tmp_path / "run"
    run.mkdir()
    workspace = Workspace(top, private=(top / "runs",), copy_limit=100)

    def look(written, key="grpo.prompts", word=None, uploads=(), kept=()):
        return workspace.find(Named(key, written, word), run, uploads, kept)

    return look


def test_a_file_of_the_workspace_is_copied_to_the_same_path(find, top, tmp_path):
    found = find("data/more.jsonl")
    assert (found.state, found.path) == ("copied", tmp_path / "run" / "data" / "more.jsonl")
    assert find(str(top / "data" / "more.jsonl")).path == found.path
    assert find("data/../data/more.jsonl").path == found.path


def test_an_upload_goes_before_the_workspace_whatever_folder_is_written(find, tmp_path):
    (tmp_path / "run" / "more.jsonl").write_text("[]")
    found = find("data/more.jsonl", uploads=("more.jsonl",))
    assert (found.state, found.path) == ("uploaded", tmp_path / "run" / "more.jsonl")


def test_a_file_of_a_cloned_run_goes_before_the_workspace(find, tmp_path):
    (tmp_path / "run" / "prompts.jsonl").write_text("[]")
    assert find("./prompts.jsonl", kept=("prompts.jsonl",)).state == "kept"


def test_what_is_large_is_read_where_it_lies(find, top):
    (top / "base.gguf").write_bytes(b"x" * 1000)
    found = find("base.gguf", key="model.path")
    assert (found.state, found.path) == ("referred", top / "base.gguf")
    assert find("base.gguf").state == "referred", "over the limit for a copy"
    assert find("data", key="grpo.reward_model.path").state == "referred", "a folder"


@pytest.mark.parametrize("written", ["../secret.jsonl", "data/../../secret.jsonl", "/etc/passwd"])
def test_nothing_outside_the_workspace_is_read(find, written):
    found = find(written)
    assert (found.state, found.path) == ("refused", None)
    assert "outside the workspace folder" in found.why


def test_a_link_that_leads_out_is_refused(find, top, tmp_path):
    (top / "link.jsonl").symlink_to(tmp_path / "secret.jsonl")
    (top / "folder").symlink_to(tmp_path)
    assert find("link.jsonl").state == "refused"
    assert find("folder/secret.jsonl").state == "refused"


def test_hidden_files_and_other_runs_are_refused(find):
    assert "hidden" in find(".env").why
    assert "browser's runs" in find("runs/1/x.jsonl").why


@pytest.mark.parametrize("written", ["data", "./data/", "."])
def test_a_folder_where_a_file_is_needed_is_told_as_one(find, top, written):
    found = find(written)
    assert found.state == "missing"
    folder = top / "data" if "data" in written else top
    assert found.why == f"{folder} is a folder, and this key takes a file: name the file in it"


def test_a_missing_file_is_named_with_what_to_do(find):
    found = find("prompt.jsonl")
    assert found.state == "missing"
    assert "add the file, or write its path from that folder" in found.why


def test_a_file_that_lies_deeper_is_pointed_out(find, top):
    (top / "a" / "tiny").mkdir(parents=True)
    (top / "a" / "tiny" / "base.gguf").write_text("")
    for written in ("tiny/base.gguf", "base.gguf"):
        assert 'write "a/tiny/base.gguf", which is there' in find(written, key="model.path").why
    assert "which is there" not in find("other/base.gguf", key="model.path").why
    assert "which is there" not in find("x.jsonl").why, "in a folder that is closed"


def test_a_word_of_a_command_is_a_file_only_where_there_is_one(find):
    assert find("prompts.jsonl", "grpo.reward_command", 1).state == "copied"
    assert find("strict", "grpo.reward_command", 1).state == "word"
    assert find("/nonexistent/strict", "grpo.reward_command", 1).state == "word"
    assert find("/etc/passwd", "grpo.reward_command", 1).state == "refused"


def test_names_that_are_the_servers_own_are_not_taken_by_copies(find, tmp_path):
    assert find("output/old.jsonl").path == tmp_path / "run" / "workspace" / "output" / "old.jsonl"


def test_a_word_that_leads_out_from_either_place_is_refused(tmp_path, top):
    """From the folder of the cloned run's configuration, or from the top: one is enough."""
    workspace = Workspace(top, base="data")
    (top.parent / "workspace" / "data" / "out").symlink_to(tmp_path / "secret.jsonl")
    found = workspace.find(Named("grpo.reward_command", "out", 1), tmp_path / "run", (), ())
    assert found.state == "refused"
    assert workspace.find(Named("k", "in", 1), tmp_path / "run", (), ()).state == "word"
