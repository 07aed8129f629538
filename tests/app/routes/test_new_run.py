"""Preparing a run: what is taken, what is said about it, and that nothing wrong is started."""

from __future__ import annotations

import html
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from desk import Desk, config_text, prepare_workspace
from fastapi.testclient import TestClient
from pydantic import SecretStr
from web import page_headers

from app.jobs.checks import start_checks
from app.jobs.lock import locked
from app.jobs.uploads import LONGEST_TEXT
from app.resources import bundled
from app.store.models import Run
from app.web import create_app


class Browser:
    """Sends what the pages' forms send."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        app = create_app(desk.jobs.settings, desk.jobs.store)
        self.client = TestClient(app, base_url="http://127.0.0.1", follow_redirects=False)
        if (token := desk.jobs.settings.token) is not None:
            self.headers = {"authorization": f"Bearer {token.get_secret_value()}"}
        else:
            self.headers = page_headers(self.client, "/runs/new")

    def post(self, path, text="", files=(), accept="*/*", **fields):
        parts = [("files", (name, content)) for name, content in dict(files).items()]
        data = {"toml": text, **fields}
        return self.client.post(
            path, data=data, files=parts or None, headers=self.headers | {"accept": accept}
        )

    def draft(self, text="", files=(), **fields):
        """The address of a new draft."""
        answer = self.post("/runs/new", text, files, **fields)
        assert answer.status_code == 303, answer.text
        return answer.headers["location"]

    def page(self, address):
        return html.unescape(self.client.get(address, headers=self.headers).text)

    def told(self, address):
        answer = self.client.get(f"{address}.json", headers=self.headers)
        assert answer.status_code == 200
        return answer.json()

    def folder(self, address):
        return Path(self.desk.run(int(address.rsplit("/", 1)[1])).folder)


@contextmanager
def opened(folder: Path, **settings: object) -> Iterator[Browser]:
    desk = Desk.open(folder, prepare_workspace(folder / "workspace"), **settings)
    browser = Browser(desk)
    yield browser
    with desk.jobs.store.read() as session:
        drafts = [run.id for run in session.query(Run).filter(Run.status == "draft")]
    for run_id in drafts:
        desk.jobs.discard(run_id)
    desk.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with opened(tmp_path_factory.mktemp("new")) as browser:
        yield browser


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server with a token, which lets uploads run the workspace's Python programs."""
    folder = tmp_path_factory.mktemp("guarded")
    with opened(
        folder, token=SecretStr("a-token-of-some-length-for-tests"), allow_command=("python3",)
    ) as browser:
        yield browser


def unfinished(**changes):
    """A configuration whose model is missing, so that no checks are started."""
    return config_text(2, **changes).replace("tiny/tiny.gguf", "nowhere.gguf")


def test_a_pasted_configuration_is_checked_and_started_by_a_press(browser):
    address = browser.draft(config_text(2))
    deadline = time.monotonic() + 60
    while (told := browser.told(address))["checks"]["state"] == "running":
        assert told["can_start"], "nobody has to wait for the checks"
        page = browser.page(address)
        assert ("hx-get" in page) == ("Checking…" in page), "it looks again until there is a result"
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert told["checks"]["state"] == "done"
    titles = [finding["title"] for finding in told["checks"]["findings"]]
    assert {"prompts", "reward program", "memory", "sampler and trainer"} <= set(titles)
    assert told["errors"] == 0
    states = {row["key"]: row["state"] for row in told["files"]}
    assert states == {
        "model.path": "referred", "grpo.prompts": "copied", "grpo.reward_command": "copied"
    }  # fmt: skip
    page = browser.page(address)
    assert "This run can start" in page
    assert "64 prompts of at most 26 tokens" in page
    assert "hx-get" not in page

    run_id = int(address.rsplit("/", 1)[1])
    assert browser.desk.run(run_id).status == "draft"
    answer = browser.post(f"{address}/start")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/runs/{run_id}")
    run = browser.desk.run(run_id)
    assert (run.status, run.name, run.algorithm, run.planned) == ("queued", "run", "grpo", 2)
    assert browser.post(f"{address}/start").status_code == 409
    assert browser.client.get(address).status_code == 404
    browser.post(f"/runs/{run_id}/stop")


def test_what_is_wrong_stands_beside_its_line_and_starts_nothing(browser):
    address = browser.draft(config_text(2, rank="0"))
    told = browser.told(address)
    (wrong,) = [line for line in told["lines"] if line["problems"]]
    assert wrong["text"] == "rank = 0"
    assert "must be an integer" in wrong["problems"][0]
    assert not told["can_start"]
    assert told["checks"]["state"] == "none"
    assert 'id="line-' in browser.page(address)
    answer = browser.post(f"{address}/start")
    assert answer.status_code == 409
    assert browser.desk.run(int(address.rsplit("/", 1)[1])).status == "draft"


def test_text_that_is_no_toml_is_shown_as_it_is(browser):
    address = browser.draft("[run\n<script>alert(1)</script>")
    assert "this is not valid TOML" in browser.page(address)
    assert "<script>alert" not in browser.client.get(address).text


def test_mended_text_is_looked_at_again(browser):
    address = browser.draft(unfinished(rank="0"))
    browser.post(address, unfinished())
    told = browser.told(address)
    assert [line["problems"] for line in told["lines"] if line["problems"]] == [
        [
            "model.path names nowhere.gguf, which was not uploaded, and is not in the workspace "
            f"folder {browser.desk.workspace}: add the file, or write its path from that folder."
        ]
    ]


def test_uploads_lie_beside_the_configuration_and_go_before_the_workspace(browser):
    files = {"grpo.toml": unfinished(), "prompts.jsonl": '{"messages": []}', "reward.py": "pass"}
    address = browser.draft(files=files)
    told = browser.told(address)
    assert told["file_name"] == "grpo.toml"
    assert told["title"] == "grpo"
    (prompts,) = [row for row in told["files"] if row["key"] == "grpo.prompts"]
    assert (prompts["state"], prompts["place"]) == ("uploaded", "prompts.jsonl")
    assert [(u["name"], u["used"]) for u in told["uploads"]] == [
        ("prompts.jsonl", True),
        ("reward.py", False),
    ]
    browser.post(f"{address}/remove", name="prompts.jsonl")
    assert not (browser.folder(address) / "prompts.jsonl").exists()
    (prompts,) = [r for r in browser.told(address)["files"] if r["key"] == "grpo.prompts"]
    assert prompts["state"] == "copied"


@pytest.mark.parametrize("path", ["/etc/passwd", "../secret.jsonl", "tiny/../../secret.jsonl"])
def test_a_configuration_names_nothing_outside_the_workspace(browser, path):
    (browser.desk.workspace.parent / "secret.jsonl").write_text("{}")
    address = browser.draft(unfinished().replace("tiny/prompts.jsonl", path))
    assert "outside the workspace folder" in browser.page(address)
    assert not browser.told(address)["can_start"]


def test_a_run_keeps_what_it_was_checked_with(browser):
    mine = browser.desk.workspace / "mine.jsonl"
    mine.write_text("{}\n")
    address = browser.draft(unfinished().replace("tiny/prompts.jsonl", "mine.jsonl"))
    kept = browser.folder(address) / "mine.jsonl"
    assert kept.read_text() == "{}\n"
    mine.unlink()
    states = {row["key"]: row["state"] for row in browser.told(address)["files"]}
    assert states["grpo.prompts"] == "copied"


def test_a_clone_has_the_text_and_the_files_of_its_run(browser):
    address = browser.draft(unfinished(), {"mine.jsonl": "{}"})
    number = int(address.rsplit("/", 1)[1])
    (browser.folder(address) / "tiny" / "prompts.jsonl").write_text("kept\n")
    page = browser.client.get(f"/runs/new?clone={number}").text
    assert f'name="clone" value="{number}"' in page
    assert "nowhere.gguf" in page
    clone = browser.draft(unfinished(rank="4"), clone=str(number))
    states = {row["key"]: row["state"] for row in browser.told(clone)["files"]}
    assert states["grpo.prompts"] == "kept"
    assert (browser.folder(clone) / "tiny" / "prompts.jsonl").read_text() == "kept\n"
    assert (browser.folder(clone) / "mine.jsonl").exists()


def test_a_discarded_draft_leaves_nothing(browser):
    address = browser.draft(unfinished())
    folder = browser.folder(address)
    assert f'href="{address}"' in browser.client.get("/runs/new").text
    assert browser.post(f"{address}/discard").headers["location"] == "/runs/new"
    assert not folder.exists()
    assert browser.client.get(address).status_code == 404


@pytest.mark.parametrize(
    ("files", "status", "words"),
    [
        ({}, 400, "There is no configuration"),
        ({"a.toml": "", "b.toml": ""}, 400, "one configuration, and these are 2"),
        ({"a.toml": "x = 1", ".env": "SECRET"}, 400, "cannot begin with"),
        ({"a.toml": "x = 1", "worker.log": "x"}, 400, "the server has a file of that name"),
        ({f"{n}.txt": "x" for n in range(33)}, 413, "32 files"),
    ],
)
def test_what_is_not_taken_is_said_and_leaves_no_draft(browser, files, status, words):
    def drafts():
        return browser.client.get("/runs/new.json").json()["drafts"]

    before = drafts()
    answer = browser.post("/runs/new", files=files)
    assert (answer.status_code, words in answer.json()["detail"]) == (status, True), answer.text
    assert drafts() == before


@pytest.mark.parametrize(
    ("text", "files", "words"),
    [
        ("", {}, "There is no configuration"),
        ("", {"prompts.jsonl": "{}"}, "There is no configuration"),
        ("# <kept>", {"a.toml": "", "b.toml": ""}, "one configuration, and these are 2"),
        ("# <kept>", {f"{n}.txt": "x" for n in range(33)}, "32 files"),
    ],
)
def test_a_browser_is_told_on_the_page_itself(browser, text, files, words):
    answer = browser.post("/runs/new", text, files, accept="text/html")
    assert answer.status_code in (400, 413)
    page = html.unescape(answer.text)
    assert "<h1>New run</h1>" in page
    assert words in page
    # What comes after too many files is not read.
    assert text in page or len(files) > 32


def test_a_draft_that_takes_no_such_file_says_so_itself(guarded):
    address = guarded.draft(unfinished())
    text = unfinished(rank="4")
    answer = guarded.post(address, text, {"reward.py": "pass"}, accept="text/html")
    assert answer.status_code == 400
    page = html.unescape(answer.text)
    assert "takes data" in page
    assert text in page, "what was written is not lost"
    assert guarded.told(address)["text"] == unfinished()

    answer = guarded.post("/runs/new", text, {"reward.py": "pass"}, accept="text/html")
    assert answer.status_code == 400
    page = html.unescape(answer.text)
    assert "takes data" in page
    assert text in page


def test_what_no_key_names_is_said_once_the_configuration_can_be_read(browser):
    address = browser.draft("[run\n", {"prompts.jsonl": "{}"})
    assert browser.told(address)["uploads"][0]["used"] is None
    assert "no key names it" not in browser.page(address)
    browser.post(address, unfinished(), {"more.jsonl": "{}"})
    assert "no key names it" in browser.page(address)


def test_a_supervised_run_is_checked_and_started(browser):
    examples = bundled("examples")
    names = ("tiny/tiny.gguf", "tiny/sums.jsonl", "tiny/sums_held_out.jsonl")
    files = {Path(name).name: (examples / name).read_bytes() for name in names}
    text = (examples / "smoke_tiny_sft.toml").read_text(encoding="utf-8")
    address = browser.draft(files={"smoke_tiny_sft.toml": text, **files})
    deadline = time.monotonic() + 60
    while (told := browser.told(address))["checks"]["state"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert {row["state"] for row in told["files"]} == {"uploaded"}
    assert (told["checks"]["state"], told["errors"]) == ("done", 0)
    assert "data_format" in browser.page(address)
    run_id = int(address.rsplit("/", 1)[1])
    assert browser.post(f"{address}/start").status_code == 303
    assert browser.desk.run(run_id).algorithm == "sft"
    if browser.desk.run(run_id).status == "queued":
        browser.post(f"/runs/{run_id}/stop")


def test_two_files_of_one_name_are_not_mixed_up(browser):
    parts = [("files", ("a.toml", "x = 1")), ("files", ("A.TOML", "y = 1"))]
    answer = browser.client.post("/runs/new", files=parts, headers=browser.headers)
    assert answer.status_code == 400
    assert "two of the files have this name" in answer.json()["detail"]


def test_too_much_is_refused_before_it_is_read(tmp_path):
    with opened(tmp_path, max_upload_bytes=200_000) as browser:
        answer = browser.post("/runs/new", files={"a.toml": "x" * 2_000_000})
        assert answer.status_code == 413

        browser.draft(unfinished(), {"as large as is taken.txt": "x" * 200_000})
        browser.draft(unfinished(), {"one.txt": "x" * 120_000})
        address = browser.draft(unfinished(), {"one.txt": "x" * 120_000})
        answer = browser.post(address, unfinished(), {"two.txt": "x" * 120_000})
        assert answer.status_code == 413
        assert "together" in answer.json()["detail"]


def test_with_a_token_uploads_run_only_what_the_operator_allowed(guarded):
    assert guarded.told(guarded.draft(unfinished()))["faults"] == 1, "the model alone"
    text = unfinished(reward_command='["bash", "smoke_rl_reward.py"]')
    page = guarded.page(guarded.draft(text))
    assert "the operator has not allowed (allowed: python3)" in page
    code = unfinished(reward_command='["python3", "-c", "print()"]')
    assert "--trust-uploads" in guarded.page(guarded.draft(code))
    answer = guarded.post("/runs/new", unfinished(), {"smoke_rl_reward.py": "import os"})
    assert answer.status_code == 400
    assert "takes data" in answer.json()["detail"]


def test_other_peoples_drafts_are_no_programs_of_the_workspace(tmp_path):
    """The runs' folders may lie in the workspace; what was uploaded there is not the operator's."""
    workspace = tmp_path / "workspace"
    settings = {
        "token": SecretStr("a-token-of-some-length-for-tests"),
        "allow_command": ("python3",),
        "data_folder": workspace,
    }
    with opened(tmp_path, **settings) as browser:
        first = browser.draft(unfinished(), {"code.txt": "print('mine')"})
        path = (browser.folder(first) / "code.txt").relative_to(workspace)
        second = browser.draft(unfinished(reward_command=f'["python3", "{path}"]'))
        assert not browser.told(second)["can_start"]
        assert "browser's runs" in browser.page(second)


@pytest.mark.full
def test_checks_that_take_too_long_are_ended_with_all_they_started(browser, tmp_path):
    pids = tmp_path / "pids.txt"
    hang = f"import os, time\nopen({str(pids)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    text = config_text(2, reward_command='["python3", "hang.py"]')
    address = browser.draft(text, {"hang.py": hang})
    with locked(browser.folder(address)):
        start_checks(browser.folder(address), limit=8.0)
    deadline = time.monotonic() + 60
    while (told := browser.told(address))["checks"]["state"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert told["checks"]["state"] == "failed"
    assert "ended after 8 s" in told["checks"]["message"]
    with pytest.raises(ProcessLookupError):
        os.kill(int(pids.read_text()), 0)


def test_checks_that_find_what_would_stop_the_run_keep_it_from_starting(browser):
    program = "import sys\nsys.exit('no dictionary here')\n"
    text = config_text(2, reward_command='["python3", "broken.py"]')
    address = browser.draft(text, {"broken.py": program})
    deadline = time.monotonic() + 60
    while (told := browser.told(address))["checks"]["state"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.2)
    (error,) = [f for f in told["checks"]["findings"] if f["level"] == "error"]
    assert "no dictionary here" in error["detail"]
    answer = browser.post(f"{address}/start")
    assert answer.status_code == 409
    assert "would stop the run" in answer.json()["detail"]


def test_a_configuration_that_is_too_long_is_told_at_its_field_and_kept_there(browser):
    at_most = "# " + "x" * (LONGEST_TEXT - 3) + "\n"
    beside = {"notes.txt": ""}  # with a file, the form goes as a browser sends it
    assert browser.draft(at_most.replace("\n", "\r\n"), beside), "so is the end of a line"
    answer = browser.post("/runs/new", at_most + "# <more>", beside, accept="text/html")
    assert answer.status_code == 413
    page = html.unescape(answer.text)
    assert "has 1,048,584 bytes, which is more than the 1,048,576 bytes (1 MiB)" in page
    assert "into files of their own" in page
    assert "# <more>" in page, "what was written is not lost"
    assert 'aria-invalid="true" aria-describedby="refused"' in page


@pytest.mark.parametrize("more", [1, 3 * LONGEST_TEXT])
def test_a_file_that_is_too_long_for_a_configuration_is_named(browser, more):
    answer = browser.post("/runs/new", files={"long.toml": "#" * (LONGEST_TEXT + more)})
    assert answer.status_code == 413
    assert answer.json()["detail"].startswith("long.toml is larger than the 1,048,576 bytes")


def test_a_draft_is_left_as_it_was_by_one_that_is_much_too_long(browser):
    address = browser.draft(unfinished())
    text = "#" * (3 * LONGEST_TEXT)
    answer = browser.post(address, text, {"notes.txt": ""}, accept="text/html")
    assert answer.status_code == 413
    page = html.unescape(answer.text)
    assert "The pasted configuration is larger than the 1,048,576 bytes" in page
    assert 'aria-invalid="true"' in page
    assert browser.told(address)["text"] == unfinished()
