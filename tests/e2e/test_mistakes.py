"""What is wrong is said where a person looks, before anything starts or when it ended."""

from __future__ import annotations

from contextlib import closing

from playwright.sync_api import expect
from sqlalchemy import func, select

from app.store.models import Run
from e2e.runs import BROKEN_AFTER_A_WHILE, write_run
from e2e.server import Server
from e2e.steps import check, start, status


def begun(server: Server) -> int:
    """Runs that were ever started or queued."""
    with closing(server.store()) as store, store.read() as session:
        return session.scalar(select(func.count()).where(Run.status != "draft")) or 0


def test_a_wrong_line_has_its_error_beside_it_and_nothing_starts(server, tab, tmp_path):
    before = begun(server)
    files = write_run(tmp_path / "run")
    wrong = files.config.read_text().replace("group_size = 4", "group_siz = 4")
    files.config.write_text(wrong)
    number = wrong.splitlines().index("group_siz = 4") + 1
    watch = tab(server)
    check(watch.page, files.dropped)

    line = watch.page.locator(f"#line-{number}")
    expect(line).to_contain_text("group_siz = 4")
    expect(line).to_contain_text("group_size")  # the key that was meant
    expect(watch.page.get_by_role("button", name="Start")).to_be_disabled()
    assert begun(server) == before
    watch.assert_clean()

    # It is mended on the same page, and can then start.
    field = watch.page.get_by_label("Configuration", exact=True)
    field.fill(wrong.replace("group_siz", "group_size"))
    watch.page.get_by_role("button", name="Save and check").click()
    expect(watch.page.locator("#verdict")).to_contain_text("This run can start", timeout=60_000)
    expect(watch.page.get_by_role("button", name="Start")).to_be_enabled()
    assert begun(server) == before
    watch.assert_clean()


def test_files_that_are_missing_are_named(server, tab, tmp_path):
    files = write_run(tmp_path / "run")
    watch = tab(server)
    check(watch.page, [files.config, files.reward])
    expect(watch.page.locator("li.wrong")).to_contain_text("prompts.jsonl")
    expect(watch.page.get_by_role("button", name="Start")).to_be_disabled()
    watch.assert_clean()


def test_a_run_that_fails_says_why_with_the_last_words_of_the_reward_program(server, tab, tmp_path):
    files = write_run(tmp_path / "run", reward=BROKEN_AFTER_A_WHILE, name="ends badly")
    watch = tab(server)
    start(watch.page, files.dropped)

    expect(status(watch.page)).to_have_text("failed", timeout=60_000)
    said = watch.page.locator("#run-head .note.bad")
    expect(said).to_contain_text("reward program")
    expect(said).to_contain_text("the grader's licence has run out")
    watch.page.get_by_role("link", name="Journal").click()
    expect(watch.page.get_by_role("main")).to_contain_text("the grader's licence has run out")
    watch.assert_clean()
